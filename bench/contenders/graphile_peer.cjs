// graphile-worker: one node process, jobs fetched 500 at a time and completed in batches. It keeps no results.
// node graphile_peer.cjs submit|work URL PAYLOAD [HOW MANY]
const { createRequire } = require('node:module')
const load = createRequire(`${process.env.BENCH_NODE}/package.json`)
const { Logger, makeWorkerUtils, run } = load('graphile-worker')
const { Pool } = load('pg')

const [what, url, payload, many] = process.argv.slice(2)
const { searchParams, pathname, username } = new URL(url.replace('@/', '@localhost/'))
const at = { host: searchParams.get('host'), database: pathname.slice(1), user: username }
const pgPool = new Pool({ ...at, max: 12 })
const logger = new Logger(() => () => {})
const now = () => Number(process.hrtime.bigint()) / 1e6

const roles = {
  async submit() {
    const utils = await makeWorkerUtils({ pgPool, logger })
    await utils.migrate()
    const job = { identifier: 'noop', payload: JSON.parse(payload) }
    const began = now()
    for (let left = Number(many); left > 0; left -= 500) {
      await utils.addJobs(Array.from({ length: Math.min(left, 500) }, () => job))
    }
    return { rate: Number(many) / ((now() - began) / 1000) }
  },
  async work() {
    const preset = {
      worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0 },
    }
    await run({ pgPool, logger, preset, taskList: { noop: async () => {} } })
    await new Promise(() => {})
  },
}

roles[what]().then((said) => {
  console.log(JSON.stringify(said))
  process.exit(0)
})
