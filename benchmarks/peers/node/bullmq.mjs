// BullMQ on Node, started as the scripts in Python are, see harness.py: send and consume.
import { Queue, Worker } from "bullmq";

// With `callers` as the last argument 64 callers add jobs, one each at a time; without, in bulk.
const [action, url, count, concurrency, how] = process.argv.slice(2);
const { hostname, port, pathname } = new URL(url);
const number = Number(count);
const connection = {
  host: hostname,
  port: Number(port),
  db: Number(pathname.slice(1) || 0),
  maxRetriesPerRequest: null,
};
const NAME = "bench";
const BULK = 500;
const CONCURRENCY = Number(concurrency || 64);
const opts = { removeOnComplete: true };

const payloads = Array.from({ length: number }, (_, n) => ({
  order_id: `order-${String(n).padStart(8, "0")}`,
  amount: n,
  customer: `customer-${String(n % 1000).padStart(4, "0")}@example.com`,
  note: "x".repeat(90),
}));

function fail(text) {
  console.error(text);
  process.exit(1);
}

async function left(queue) {
  const counts = await queue.getJobCounts("wait", "active", "delayed", "failed", "completed");
  return Object.values(counts).reduce((sum, one) => sum + one, 0);
}

async function settled(queue, expected) {
  let found = 0;
  for (let attempt = 0; attempt < 100; attempt++) {
    found = await left(queue);
    if (found === expected) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  fail(`there are ${found} messages, and there should be ${expected}`);
}

const queue = new Queue(NAME, { connection });
await queue.waitUntilReady();
await queue.obliterate({ force: true });

const times = [];
let start = process.hrtime.bigint();
if (action === "send-one") {
  for (const payload of payloads) {
    const before = process.hrtime.bigint();
    await queue.add("count", payload, opts);
    times.push(Number(process.hrtime.bigint() - before) / 1e9);
  }
} else if (how === "callers") {
  let next = 0;
  const call = async () => {
    while (next < number) await queue.add("count", payloads[next++], opts);
  };
  await Promise.all(Array.from({ length: 64 }, call));
} else {
  for (let at = 0; at < number; at += BULK) {
    await queue.addBulk(
      payloads.slice(at, at + BULK).map((data) => ({ name: "count", data, opts })),
    );
  }
}
let seconds = Number(process.hrtime.bigint() - start) / 1e9;
if (action === "send-one") {
  times.sort((one, other) => one - other);
  seconds = times[times.length >> 1] * number;
}
let handled = number;

if (action === "consume") {
  handled = 0;
  let worker;
  await new Promise((resolve) => {
    worker = new Worker(
      NAME,
      async () => {
        if (handled === 0) start = process.hrtime.bigint();
        handled += 1;
        if (handled === number) resolve();
      },
      { connection, concurrency: CONCURRENCY },
    );
  });
  seconds = Number(process.hrtime.bigint() - start) / 1e9;
  await worker.close();
  if (handled !== number) fail(`${handled} messages were handled, there were ${number}`);
  await settled(queue, 0);
} else {
  await settled(queue, number);
}
await queue.obliterate({ force: true });
await queue.close();
console.log((handled / seconds).toFixed(3));
process.exit(0);
