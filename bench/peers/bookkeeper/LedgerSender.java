import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.apache.bookkeeper.client.api.WriteHandle;

/** Appends entries to the ledgers of topics. There is no batch: bodies are entries in a row. */
final class LedgerSender implements Sender {
    private final List<WriteHandle> ledgers;

    LedgerSender(List<WriteHandle> ledgers) {
        this.ledgers = ledgers;
    }

    @Override
    public void send(int topic, List<byte[]> bodies) throws Exception {
        CompletableFuture<Void> done = new CompletableFuture<>();
        send(topic, bodies, error -> {
            if (error == null) {
                done.complete(null);
            } else {
                done.completeExceptionally(error);
            }
        });
        done.get();
    }

    @Override
    public void send(int topic, List<byte[]> bodies, Consumer<Throwable> onEnd) {
        WriteHandle ledger = ledgers.get(topic);
        AtomicInteger left = new AtomicInteger(bodies.size());
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (byte[] body : bodies) {
            ledger.appendAsync(body).whenComplete((entry, error) -> {
                if (error != null) {
                    failure.compareAndSet(null, error);
                }
                if (left.decrementAndGet() == 0) {
                    onEnd.accept(failure.get());
                }
            });
        }
    }
}
