import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * The side of a driver in Java in the talk with bench/peers/remote.py: one line of JSON there, one
 * back.
 */
final class ControlServer {
    /** Does what a request asks for and returns its answer. */
    interface Answerer {
        Object answer(JSONObject request) throws Exception;
    }

    private ControlServer() {}

    /** Serves until the process is ended. */
    static void serve(int port, Answerer answerer) throws IOException {
        InetAddress host = InetAddress.getLoopbackAddress();
        try (ServerSocket server = new ServerSocket(port, 16, host)) {
            while (true) {
                // Questions come while a load runs.
                Socket socket = server.accept();
                new Thread(() -> talk(socket, answerer)).start();
            }
        }
    }

    private static void talk(Socket socket, Answerer answerer) {
        try (socket) {
            BufferedReader lines = new BufferedReader(
                new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            String line;
            while ((line = lines.readLine()) != null) {
                Object found;
                try {
                    found = answerer.answer(JSON.parseObject(line));
                } catch (Exception error) {
                    found = Map.of("error", String.valueOf(error));
                }
                String said = JSON.toJSONString(found) + "\n";
                socket.getOutputStream().write(said.getBytes(StandardCharsets.UTF_8));
                socket.getOutputStream().flush();
            }
        } catch (IOException error) {
            System.err.println("whoever asked is gone: " + error);
        }
    }
}
