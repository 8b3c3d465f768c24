import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.random.RandomGenerator;

/**
 * One load through a client in Java: so many batches in flight, or so many a second.
 *
 * <p>The same as bench/peers/load_driver.py does for clients in Python, with the same clock: nanoTime
 * and Python's monotonic are one on Linux. One at a time is sent synchronously, more are not.
 */
final class Load {
    private static final int OUTSTANDING_MAX = 4096;
    private static final int BODY_VARIETY = 16;

    private final Sender sender;
    private final int batchCount;
    private final int topicCount;
    private final int inFlightCount;
    private final double seconds;
    private final double ratePerS;
    private final boolean toleratesErrors;
    private final byte[][] bodies;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private long left;
    private long number;

    // Samples, guarded by this.
    private double[] began = new double[1024];
    private double[] took = new double[1024];
    private int sampleCount;
    private long messageCount;
    private long errorCount;

    Load(Sender sender, JSONObject request) {
        this.sender = sender;
        batchCount = request.getIntValue("batch_count");
        topicCount = request.getIntValue("topic_count");
        inFlightCount = request.getIntValue("in_flight_count");
        Double wanted = request.getDouble("seconds");
        seconds = wanted == null ? Double.POSITIVE_INFINITY : wanted;
        Long count = request.getLong("count");
        left = count == null ? Long.MAX_VALUE : count;
        ratePerS = request.getDoubleValue("rate_per_s");
        toleratesErrors = request.getBooleanValue("tolerates_errors");
        int sizeBytes = request.getIntValue("body_size_bytes");
        bodies = new byte[Math.max(BODY_VARIETY, batchCount)][sizeBytes];
        for (byte[] body : bodies) {
            RandomGenerator.getDefault().nextBytes(body);
        }
    }

    Map<String, Object> run() throws Exception {
        double start = now();
        if (ratePerS > 0) {
            sendAtRate(start);
        } else if (inFlightCount == 1) {
            while (left > 0 && now() - start < seconds) {
                double at = now();
                send(next(), at, null);
            }
        } else {
            sendInFlight(start);
        }
        if (failure.get() != null) {
            throw new Exception(failure.get());
        }
        double end = now();
        synchronized (this) {
            return Map.of(
                "message_count", messageCount,
                "error_count", errorCount,
                "seconds", end - start,
                "began_s", Arrays.copyOf(began, sampleCount),
                "took_s", Arrays.copyOf(took, sampleCount));
        }
    }

    private void sendInFlight(double start) throws Exception {
        Semaphore room = new Semaphore(inFlightCount);
        while (true) {
            room.acquire();
            double at = now();
            if (left == 0 || at - start >= seconds || failure.get() != null) {
                break;
            }
            send(next(), at, room);
        }
        room.acquire(inFlightCount - 1);
    }

    private void sendAtRate(double start) throws Exception {
        Semaphore room = new Semaphore(OUTSTANDING_MAX);
        double end = start + seconds;
        for (double due = start; due < end && failure.get() == null; due += 1 / ratePerS) {
            double wait = due - now();
            if (wait > 0) {
                LockSupport.parkNanos((long) (wait * 1e9));
            }
            room.acquire();
            send(next(), due, room);
        }
        room.acquire(OUTSTANDING_MAX);
    }

    private List<byte[]> next() {
        int size = (int) Math.min(batchCount, left);
        left -= size;
        List<byte[]> found = new ArrayList<>(size);
        for (int n = 0; n < size; n++) {
            found.add(bodies[(int) ((number + n) % bodies.length)]);
        }
        number++;
        return found;
    }

    /** Without a room it waits for the ack; with one it releases it at the ack. */
    private void send(List<byte[]> found, double at, Semaphore room) throws Exception {
        int topic = (int) ((number - 1) % topicCount);
        try {
            if (room == null) {
                sender.send(topic, found);
                onAck(at, found.size());
                return;
            }
            sender.send(topic, found, error -> {
                if (error == null) {
                    onAck(at, found.size());
                } else {
                    onError(error);
                }
                room.release();
            });
        } catch (Exception error) {
            onError(error);
            if (room != null) {
                room.release();
            }
            if (!toleratesErrors) {
                throw error;
            }
        }
    }

    private synchronized void onAck(double at, int count) {
        if (sampleCount == began.length) {
            began = Arrays.copyOf(began, 2 * sampleCount);
            took = Arrays.copyOf(took, 2 * sampleCount);
        }
        began[sampleCount] = at;
        took[sampleCount++] = now() - at;
        messageCount += count;
    }

    private synchronized void onError(Throwable error) {
        errorCount++;
        if (!toleratesErrors) {
            failure.compareAndSet(null, error);
        }
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }
}
