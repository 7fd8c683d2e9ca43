export { type Context } from "./context.js";
export * from "./errors.js";
export { type Handler, type ServiceOptions, Worker, type WorkerOptions } from "./worker.js";
