import { Refused, Worker } from "onward-worker";

const worker = new Worker();

worker.service("greet", async ({ name }: { name: string }, ctx) => {
  if (!name) throw new Refused("nobody to greet");
  await ctx.progress(0.5, "thinking of something kind");
  return `hello ${name}`;
});

await worker.run();
