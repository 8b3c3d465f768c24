import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs subcommands of RocketMQ's tool, one after the other in one process: a line of input each, its
 * words between tabs. Prints what each printed, in Base64, a line each; "late " before it if it was
 * still running after the time that the first argument says, in ms. One that ends the process is the
 * last.
 */
public final class Subcommands {
    private static ByteArrayOutputStream said = new ByteArrayOutputStream();

    public static void main(String[] arguments) throws Exception {
        long limitMs = Long.parseLong(arguments[0]);
        PrintStream own = System.out;
        Runtime.getRuntime().addShutdownHook(new Thread(() -> own.println(text())));
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            said = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(said, true, "UTF-8");
            System.setOut(stream);
            System.setErr(stream);
            String[] words = line.split("\t", -1);
            Thread work = new Thread(() -> MQAdminStartup.main0(words, null));
            work.setDaemon(true);
            work.start();
            work.join(limitMs);
            String late = work.isAlive() ? "late " : "";
            own.println(late + text());
            own.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String text() {
        return Base64.getEncoder().encodeToString(said.toByteArray());
    }
}
