// BullMQ: one node process, concurrency 20, completed jobs kept with their return value.
// node bullmq_peer.cjs submit|work|idle SOCKET PAYLOAD [HOW MANY] [BEFORE THEM] [PAUSE MS]
const { createRequire } = require('node:module')
const load = createRequire(`${process.env.BENCH_NODE}/package.json`)
const { Queue, QueueEvents, Worker } = load('bullmq')
const Redis = load('ioredis')

const [what, path, payload, many, warm, pauseMs] = process.argv.slice(2)
const connect = () => new (Redis.default ?? Redis)({ path, maxRetriesPerRequest: null })
const data = JSON.parse(payload)
const now = () => Number(process.hrtime.bigint()) / 1e6

const roles = {
  async submit() {
    const queue = new Queue('noop', { connection: connect() })
    await queue.waitUntilReady()
    const began = now()
    for (let left = Number(many); left > 0; left -= 500) {
      await queue.addBulk(Array.from({ length: Math.min(left, 500) }, () => ({ name: 'noop', data })))
    }
    return { rate: Number(many) / ((now() - began) / 1000) }
  },
  async idle() {
    const queue = new Queue('noop', { connection: connect() })
    const events = new QueueEvents('noop', { connection: connect() })
    await events.waitUntilReady()
    const took = []
    for (let at = 0; at < Number(warm) + Number(many); at++) {
      await new Promise((done) => setTimeout(done, Number(pauseMs)))
      const began = now()
      const job = await queue.add('noop', data)
      await job.waitUntilFinished(events)
      took.push(now() - began)
    }
    const timed = took.slice(Number(warm)).sort((a, b) => a - b)
    return { p50: timed[Math.floor(timed.length / 2)], p99: timed[Math.floor(timed.length * 0.99)] }
  },
  async work() {
    new Worker('noop', async () => true, { connection: connect(), concurrency: 20 })
    await new Promise(() => {})
  },
}

roles[what]().then((said) => {
  console.log(JSON.stringify(said))
  process.exit(0)
})
