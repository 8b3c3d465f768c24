import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends to topics and receives from the first one as a user, with the official client for Java; says
 * the outcome of each call. Arguments: endpoint, access key, secret, group, topics.
 */
public final class OfficialUser {
    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
                ClientConfiguration.newBuilder()
                        .setEndpoints(arguments[0])
                        .enableSsl(false)
                        .setCredentialProvider(
                                new StaticSessionCredentialsProvider(arguments[1], arguments[2]))
                        .build();
        Producer producer =
                provider.newProducerBuilder().setClientConfiguration(configuration).build();
        for (int at = 4; at < arguments.length; at++) {
            String topic = arguments[at];
            byte[] body = topic.getBytes();
            try {
                producer.send(
                        provider.newMessageBuilder().setTopic(topic).setBody(body).build());
                System.out.println(topic + " OK");
            } catch (Exception error) {
                System.out.println(topic + " " + error);
            }
        }
        try {
            SimpleConsumer consumer =
                    provider.newSimpleConsumerBuilder()
                            .setClientConfiguration(configuration)
                            .setConsumerGroup(arguments[3])
                            .setAwaitDuration(Duration.ofSeconds(5))
                            .setSubscriptionExpressions(
                                    Map.of(arguments[4], new FilterExpression("*")))
                            .build();
            List<MessageView> messages = consumer.receive(1, Duration.ofSeconds(30));
            consumer.ack(messages.get(0));
            System.out.println("received OK");
        } catch (Exception error) {
            System.out.println("received " + error);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
