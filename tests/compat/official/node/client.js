// Sends or receives with the official client for Node.js; tests/compat/official/clients.py says how
// each such program is called and what it prints.
'use strict';

const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');

const KINDS = ['ordered', 'ordinary', 'delayed', 'transactional'];
const LANE_COUNT = 10;
const COMMIT = 1;
const ROLLBACK = 2;
const [mode, endpoints, prefix, countText] = process.argv.slice(2);
const count = Number(countText);
const quiet = { info() {}, warn() {}, error: (...a) => console.error(...a), debug() {} };
const options = { endpoints, namespace: '', logger: quiet, sslEnabled: false };

function say(event) {
  process.stdout.write(JSON.stringify(event) + '\n');
}

function sayFailed(what, error) {
  say({ event: 'failed', what, error: `${error.name}: ${error.message}` });
}

function sayReceived(group, message) {
  say({
    event: 'received', group, body: message.body.toString(), now_ms: Date.now(),
    attempt: message.deliveryAttempt,
  });
}

const pause = () => new Promise(resolve => setTimeout(resolve, 50));

async function produce() {
  const producer = new Producer({
    ...options,
    topics: KINDS.map(kind => `${prefix}-${kind}`),
    checker: {
      async check(message) {
        return message.properties.get('fate') === 'commit' ? COMMIT : ROLLBACK;
      },
    },
  });
  await producer.startup();
  say({ event: 'ready' });
  const lanes = [];
  for (const kind of KINDS) {
    for (let lane = 0; lane < LANE_COUNT; lane++) lanes.push(sendLane(producer, kind, lane));
  }
  await Promise.all(lanes);
  say({ event: 'done' });
}

async function sendLane(producer, kind, lane) {
  for (let number = lane; number < count; number += LANE_COUNT) {
    while (!await send(producer, kind, number)) await pause();
  }
}

async function send(producer, kind, number) {
  const name = `${kind}:${number}`;
  const message = { topic: `${prefix}-${kind}`, body: Buffer.from(name) };
  let isKept = true;
  let dueMs = 0;
  try {
    if (kind === 'transactional') {
      isKept = number % 7 !== 3;
      await sendTransaction(producer, message, name, isKept);
    } else {
      if (kind === 'ordered') message.messageGroup = `g${number % LANE_COUNT}`;
      if (kind === 'delayed') {
        const delay = 1000 * (2 + number % 5);
        dueMs = Date.now() + delay;
        message.delay = delay;
      }
      await producer.send(message);
    }
  } catch (error) {
    sayFailed(`send ${name}`, error);
    return false;
  }
  const atMs = Math.round(performance.now());
  say({ event: 'acked', kind, number, at_ms: atMs, due_ms: dueMs, kept: isKept });
  return true;
}

async function sendTransaction(producer, message, name, isKept) {
  message.properties = new Map([['fate', isKept ? 'commit' : 'rollback']]);
  const transaction = producer.beginTransaction();
  await producer.send(message, transaction);
  try {
    await (isKept ? transaction.commit() : transaction.rollback());
  } catch (error) {
    // The cluster asks what became of it, and the checker says so.
    sayFailed(`end ${name}`, error);
  }
}

async function consume() {
  const subscriptions = new Map(
    KINDS.map(kind => [`${prefix}-${kind}`, FilterExpression.SUB_ALL]));
  for (const group of ['simple', 'simple-orderly']) {
    const consumer = new SimpleConsumer({
      ...options, consumerGroup: `${prefix}-${group}`, subscriptions, awaitDuration: 50,
    });
    await consumer.startup();
    receive(consumer, group);
  }
  for (const group of ['push', 'push-orderly']) {
    const consumer = new PushConsumer({
      ...options,
      consumerGroup: `${prefix}-${group}`,
      subscriptions,
      messageListener: {
        async consume(message) {
          sayReceived(group, message);
          return ConsumeResult.SUCCESS;
        },
      },
    });
    await consumer.startup();
  }
  say({ event: 'ready' });
}

async function receive(consumer, group) {
  for (;;) {
    try {
      const found = await consumer.receive(32, 10000);
      for (const message of found) sayReceived(group, message);
      await Promise.all(found.map(message => consumer.ack(message)));
    } catch (error) {
      sayFailed(group, error);
      await pause();
    }
  }
}

// The harness closes the input when it has seen enough.
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
(mode === 'produce' ? produce() : consume()).catch(error => {
  console.error(error);
  process.exit(1);
});
