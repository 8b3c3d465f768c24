import java.util.List;
import java.util.function.Consumer;

/** The part of a peer's client that a load needs. */
interface Sender {
    /** Sends bodies together to the topic of a number; returns when all are acked. */
    void send(int topic, List<byte[]> bodies) throws Exception;

    /** Sends likewise and returns; later says null if all are acked, or why they are not. */
    void send(int topic, List<byte[]> bodies, Consumer<Throwable> onEnd) throws Exception;
}
