// BullMQ on Node, for tests: one JSON line in is a command, one JSON line out its answer or a job
// that a worker processed. Ends when its input ends.
const { FlowProducer, Queue, Worker } = require("bullmq");
const readline = require("node:readline");

const [port, prefix] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const queues = new Map();
const workers = [];

const say = (kind, value) => process.stdout.write(JSON.stringify({ kind, value }) + "\n");
const queueOf = (name) => {
  if (!queues.has(name)) queues.set(name, new Queue(name, { connection, prefix }));
  return queues.get(name);
};

const commands = {
  // Jobs that somebody on Node adds.
  add: async ({ queue, name, data, options }) => (await queueOf(queue).add(name, data, options)).id,
  counts: ({ queue }) => queueOf(queue).getJobCounts(),
  job: async ({ queue, id }) => {
    const job = await queueOf(queue).getJob(id);
    if (!job) return null;
    const { data, delay, failedReason, attemptsMade } = job;
    const state = await job.getState();
    return { data, delay, failedReason, attemptsMade, state };
  },
  fields: async ({ queue, id }) => {
    const job = await queueOf(queue).getJob(id);
    return job && { ...job.asJSON(), state: await job.getState(), finished: job.returnvalue };
  },
  metrics: async ({ queue, kind }) => (await queueOf(queue).getMetrics(kind)).meta.count,
  schedulers: ({ queue }) => queueOf(queue).getJobSchedulers(),
  pause: async ({ queue }) => (await queueOf(queue).pause(), true),
  resume: async ({ queue }) => (await queueOf(queue).resume(), true),
  isPaused: async ({ queue }) => queueOf(queue).isPaused(),
  schedule: async ({ queue, id, repeat, template }) =>
    (await queueOf(queue).upsertJobScheduler(id, repeat, template)).id,
  unschedule: ({ queue, id }) => queueOf(queue).removeJobScheduler(id),
  waiting: async ({ queue }) => {
    const found = await queueOf(queue).getJobs(["wait", "paused", "delayed", "prioritized"]);
    return found.map(({ id, name, data }) => ({ id, name, data }));
  },
  // A parent with children, all in one queue.
  flow: async ({ queue, parent, children }) => {
    const producer = new FlowProducer({ connection, prefix });
    const made = await producer.add({
      queueName: queue,
      ...parent,
      children: children.map((child) => ({ queueName: queue, ...child })),
    });
    await producer.close();
    return made.job.id;
  },
  children: async ({ queue, id }) => (await queueOf(queue).getJob(id)).getChildrenValues(),
  retry: async ({ queue, id }) => {
    const job = await queueOf(queue).getJob(id);
    await job.retry();
    return true;
  },
  remove: async ({ queue, id }) => (await (await queueOf(queue).getJob(id)).remove(), true),
  // A worker that fails the first `failures` times, or never ends its jobs.
  work: async ({ queue, failures = 0, result, hang = false, limiter, options = {} }) => {
    let left = failures;
    const worker = new Worker(
      queue,
      async (job) => {
        say("job", { id: job.id, name: job.name, data: job.data, attempts: job.attemptsMade });
        if (hang) await new Promise(() => {});
        if (left-- > 0) throw new Error("Node says no");
        return result;
      },
      { connection, prefix, limiter, ...options },
    );
    workers.push(worker);
    await worker.waitUntilReady();
    return true;
  },
  stop: async () => {
    await Promise.all(workers.splice(0).map((worker) => worker.close()));
    return true;
  },
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const command = JSON.parse(line);
  try {
    say("answer", await commands[command.do](command));
  } catch (error) {
    say("error", String(error));
  }
}).on("close", async () => {
  // By force: a worker that waits for its rate limit does not always end before.
  await Promise.all(workers.map((worker) => worker.close(true)));
  await Promise.all([...queues.values()].map((queue) => queue.close()));
  process.exit(0);
});
