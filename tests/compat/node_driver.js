// Drives the official Node.js client by lines of JSON, as python_driver.py does the Python client.
'use strict';

const readline = require('readline');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');

const [endpoints, accessKey, accessSecret] = process.argv.slice(2);
const COMMIT = 1;
const quiet = { info() {}, warn() {}, error: (...a) => console.error(...a), debug() {} };
const sslEnabled = process.env.COMPAT_TLS === '1';
const options = { endpoints, namespace: '', logger: quiet, sslEnabled };
if (accessKey) options.sessionCredentials = { accessKey, accessSecret };

function view(message) {
  return {
    id: message.messageId,
    topic: message.topic,
    body: message.body.toString('base64'),
    tag: message.tag,
    keys: message.keys,
    group: message.messageGroup,
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
    is_corrupted: Boolean(message.corrupted),
  };
}

const state = { clients: [], checked: [], received: new Map(), seen: [], waiting: [] };

function messageOf(call) {
  const message = { topic: call.topic, body: Buffer.from(call.body, 'base64') };
  if (call.tag) message.tag = call.tag;
  if (call.keys) message.keys = call.keys;
  if (call.group) message.messageGroup = call.group;
  if (call.delay_ms) message.delay = call.delay_ms;
  if (call.properties) message.properties = new Map(Object.entries(call.properties));
  return message;
}

const calls = {
  async producer({ topics, commits_orphans }) {
    const own = { ...options, topics };
    if (commits_orphans) {
      own.checker = {
        async check(message) {
          state.checked.push(message.messageId);
          return COMMIT;
        },
      };
    }
    state.producer = new Producer(own);
    state.clients.push(state.producer);
    await state.producer.startup();
  },
  async send(call) {
    const receipt = await state.producer.send(messageOf(call));
    return { id: receipt.messageId, recall: receipt.recallHandle };
  },
  async half(call) {
    const transaction = state.producer.beginTransaction();
    const receipt = await state.producer.send(messageOf(call), transaction);
    return { id: receipt.messageId };
  },
  async checked() { return state.checked; },
  async recall({ topic, handle }) {
    return { id: (await state.producer.recallMessage(topic, handle)).messageId };
  },
  async simple({ group, topic, tags = '*', await_s = 2 }) {
    state.simple = new SimpleConsumer({
      ...options,
      consumerGroup: group,
      subscriptions: new Map([[topic, new FilterExpression(tags)]]),
      awaitDuration: await_s * 1000,
    });
    state.clients.push(state.simple);
    await state.simple.startup();
  },
  async receive({ count = 32, invisible_s = 30 }) {
    const found = await state.simple.receive(count, invisible_s * 1000);
    for (const message of found) state.received.set(message.messageId, message);
    return found.map(view);
  },
  async ack({ message_id }) { await state.simple.ack(state.received.get(message_id)); },
  async change({ message_id, invisible_s }) {
    await state.simple.changeInvisibleDuration(
      state.received.get(message_id), invisible_s * 1000);
  },
  async push({ group, topic }) {
    const consumer = new PushConsumer({
      ...options,
      consumerGroup: group,
      subscriptions: new Map([[topic, FilterExpression.SUB_ALL]]),
      messageListener: {
        async consume(message) {
          state.seen.push(view(message));
          for (const look of state.waiting) look();
          const until = Number(message.properties.get('fail_until') || '0');
          return message.deliveryAttempt >= until ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
        },
      },
    });
    state.clients.push(consumer);
    await consumer.startup();
  },
  async pushed({ count, timeout_s }) {
    await new Promise(resolve => {
      const timer = setTimeout(resolve, timeout_s * 1000);
      const look = () => {
        if (state.seen.length >= count) {
          clearTimeout(timer);
          resolve();
        }
      };
      state.waiting.push(look);
      look();
    });
    return state.seen;
  },
  async close() {
    // A push consumer waits for the end of its long polls, 20 s at most.
    const soon = new Promise(resolve => setTimeout(resolve, 1000));
    for (const client of state.clients) await Promise.race([client.shutdown(), soon]);
    state.clients = [];
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const call = JSON.parse(line);
    let answer;
    try {
      answer = { ok: true, result: (await calls[call.do](call)) ?? null };
    } catch (error) {
      answer = { ok: false, error: `${error.name}: ${error.message}` };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}

main();
