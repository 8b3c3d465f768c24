import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * BookKeeper's own client, told what to do by bench/peers/remote.py. A topic is a list of ledgers, of
 * which the last one is written.
 *
 * <p>Arguments: the control port, the address of the metadata, the copies of an entry, those that an
 * ack needs. Ends with its process.
 */
public final class Driver {
    private static final byte[] PASSWORD = new byte[0];
    private static final int TIMEOUT_S = 30;
    private static final int TOPICS_AT_ONCE = 100;
    private static final int READ_COUNT = 200;

    private final BookKeeper client;
    private final int copies;
    private final int ackCopies;
    private final List<List<WriteHandle>> topics = new ArrayList<>();

    private Driver(String metadata, int copies, int ackCopies) throws Exception {
        this.copies = copies;
        this.ackCopies = ackCopies;
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(metadata);
        settings.setAddEntryTimeout(TIMEOUT_S);
        settings.setReadEntryTimeout(TIMEOUT_S);
        // As Pulsar has it: the newer one costs more for each entry.
        settings.setUseV2WireProtocol(true);
        // There is no fourth bookie that could take the place of a slow one.
        settings.setDelayEnsembleChange(true);
        client = BookKeeper.newBuilder(settings).build();
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver(
            arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
        ControlServer.serve(Integer.parseInt(arguments[0]), driver::answer);
    }

    private Object answer(JSONObject request) throws Exception {
        switch (request.getString("op")) {
            case "open":
                open(request.getIntValue("count"));
                return Map.of();
            case "produce":
                return new Load(new LedgerSender(writers()), request).run();
            case "consume":
                return consume();
            default:
                throw new IllegalArgumentException("there is no " + request.getString("op"));
        }
    }

    /** Makes a new ledger for each topic. The old ones stay, to be read. */
    private synchronized void open(int count) throws Exception {
        while (topics.size() < count) {
            topics.add(new ArrayList<>());
        }
        for (int lo = 0; lo < count; lo += TOPICS_AT_ONCE) {
            List<CompletableFuture<WriteHandle>> made = new ArrayList<>();
            for (int n = lo; n < Math.min(count, lo + TOPICS_AT_ONCE); n++) {
                made.add(client.newCreateLedgerOp()
                    .withEnsembleSize(copies)
                    .withWriteQuorumSize(copies)
                    .withAckQuorumSize(ackCopies)
                    .withDigestType(DigestType.CRC32C)
                    .withPassword(PASSWORD)
                    .execute());
            }
            for (int n = 0; n < made.size(); n++) {
                topics.get(lo + n).add(made.get(n).get(TIMEOUT_S, TimeUnit.SECONDS));
            }
        }
    }

    private synchronized List<WriteHandle> writers() {
        List<WriteHandle> found = new ArrayList<>(topics.size());
        for (List<WriteHandle> ledgers : topics) {
            found.add(ledgers.get(ledgers.size() - 1));
        }
        return found;
    }

    private synchronized Object consume() throws Exception {
        long count = 0;
        long sizeBytes = 0;
        double start = System.nanoTime() / 1e9;
        for (WriteHandle ledger : topics.get(0)) {
            long end = ledger.getLastAddConfirmed() + 1;
            CompletableFuture<LedgerEntries> next = read(ledger, 0, end);
            for (long lo = 0; lo < end; lo += READ_COUNT) {
                CompletableFuture<LedgerEntries> found = next;
                next = read(ledger, lo + READ_COUNT, end);
                try (LedgerEntries entries = found.get(TIMEOUT_S, TimeUnit.SECONDS)) {
                    for (LedgerEntry entry : entries) {
                        count++;
                        sizeBytes += entry.getEntryBytes().length;
                    }
                }
            }
        }
        double seconds = System.nanoTime() / 1e9 - start;
        return Map.of("message_count", count, "size_bytes", sizeBytes, "seconds", seconds);
    }

    /** Reads up to READ_COUNT entries from `lo` on; null at the end. */
    private static CompletableFuture<LedgerEntries> read(WriteHandle ledger, long lo, long end) {
        return lo < end ? ledger.readAsync(lo, Math.min(end, lo + READ_COUNT) - 1) : null;
    }
}
