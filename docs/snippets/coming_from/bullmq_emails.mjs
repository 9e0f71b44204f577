// --8<-- [start:program]
import { Queue, QueueEvents, Worker } from "bullmq";

const connection = { url: process.env.REDIS_URL ?? "redis://localhost:6379" };

const worker = new Worker(
  "emails",
  async (job) => {
    if (job.name === "welcome") {
      await job.updateProgress(50);
      return `sent to ${job.data.to}`;
    }
    return `newsletter for ${job.data.region}`;
  },
  { connection, concurrency: 10 },
);

const queue = new Queue("emails", { connection });
const events = new QueueEvents("emails", { connection });
await queue.upsertJobScheduler(
  "newsletter",
  { pattern: "0 7 * * *", tz: "Europe/Berlin" },
  { name: "newsletter", data: { region: "north" } },
);
const job = await queue.add(
  "welcome",
  { to: "ada@example.com" },
  { attempts: 5, backoff: { type: "exponential", delay: 1000 }, delay: 1000 },
);
console.log(await job.waitUntilFinished(events, 30000));
await Promise.all([worker.close(), queue.close(), events.close()]);
// --8<-- [end:program]
