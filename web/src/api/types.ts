// The wire's types under the names that the page uses. What the server's OpenAPI document describes is taken from it.
import type { components } from "./schema";

type Schemas = components["schemas"];
/** Where the document says less than is true: a string that is one of a few, an object whose fields are known. */
type Refine<T, R> = Omit<T, keyof R> & R;

// Generated.

export type State = Schemas["State"];
export type Task = Refine<
  Schemas["TaskShape"],
  { state: State; phase: Phase; payload: unknown; result: unknown; error: Fault | null }
>;
export type TaskEvent = Refine<Schemas["EventShape"], { data: unknown }>;
export type Explanation = Schemas["ExplainShape"];
export type Approval = Refine<Schemas["ApprovalShape"], { payload: unknown }>;
export type DeadGroup = Refine<Schemas["GroupShape"], { sample: Task }>;
export type Replayed = Schemas["Replayed"];
export type Abandoned = Schemas["Abandoned"];
export type Worker = Schemas["WorkerShape"];
export type Session = Refine<Schemas["SessionShape"], { states: Partial<Record<State, number>> }>;
export type Notification = Schemas["NotificationShape"];
export type SharedState = Schemas["SharedShape"];
export type Queue = Schemas["QueueView"];
export type Breaker = Schemas["BreakerView"];
export type FieldFault = Schemas["FieldFault"];

/** The document has one for each kind of item; this is all of them. */
export interface Page<T> {
  items: T[];
  next: string | null;
}

// By hand, as long as the document does not describe them: everything from here to the end of the file.

export type Phase =
  State | "retry_wait" | "retrying" | "requeued" | "offered" | "overdue" | "canceling" | "waiting_approval" | "parked";

export interface Fault {
  kind: string;
  message: string;
  status?: number;
  retryable?: boolean;
  retry_after_ms?: number;
  details?: unknown;
}

export interface Preferences {
  push: boolean;
  types: string[];
  webhook: { url: string; types: string[] } | null;
}

export interface Service {
  name: string;
  task_types: string[];
  schema: Record<string, unknown>;
  via: string;
  requires_approval: boolean;
  sensitive: string[];
  timeout_ms: number | null;
  max_retries: number | null;
}

export interface Health {
  status: "healthy" | "degraded" | "unhealthy";
  version: string;
  details: Record<string, { status: string } & Record<string, unknown>>;
  timestamp: string;
}

// /api/v2/flows, /runs, /schedules

export type NodeStatus = "ok" | "running" | "error" | "canceled";

export interface FlowNode {
  key: string; // its path: "pack/wrap" lies in the subflow "pack"
  kind: string;
  what: string;
  depth: number;
  start: boolean;
  status: NodeStatus | null;
  edges: { action: string; to: string }[]; // `to` is a key of the same graph
}

export interface Flaw {
  node: string | null;
  field: string;
  message: string;
}

export interface Flow {
  id: string;
  name: string;
  version: number; // 0: none is published
  created_at: number;
}

export interface FlowVersion {
  version_id: string;
  version: number;
  status: string;
  published_at: number;
}

export interface Drawn extends FlowVersion {
  flow_id: string;
  name: string;
  definition: unknown;
  warnings: Flaw[];
  nodes: FlowNode[];
}

export type FlowShown = Flow & Partial<Drawn> & { versions: FlowVersion[] };

export interface Validated {
  valid: boolean;
  faults: Flaw[];
  warnings: Flaw[];
}

export interface NodeRun {
  id: string; // of the call's task, a colon, the attempt
  node_key: string;
  attempt_no: number;
  status: NodeStatus;
  exec_input_json: string;
  exec_output_json: string;
  error_text: string;
  action: string;
  started_at: number | null;
  finished_at: number | null;
  worker_id: string;
  worker_url: string;
}

export interface RunBrief extends Task {
  flow: string;
  flow_version_id: string;
  params: Record<string, unknown>;
  shared: Record<string, unknown>;
  current_node: string;
  last_action: string | null;
  step_count: number;
  forked_from: string | null;
  waiting_for: string | null;
}

export interface Run extends RunBrief {
  nodes: FlowNode[];
  node_runs: NodeRun[];
}

export interface ScheduleWork {
  type: string | null;
  payload: unknown;
  queue: string | null;
  priority: "high" | "normal" | "low" | null;
  max_retries: number | null;
  timeout_ms: number | null;
  requires_approval: boolean | null;
  session_id: string | null;
  flow: string | null;
  params: Record<string, unknown> | null;
}

export interface Schedule extends ScheduleWork {
  name: string;
  cron: string | null;
  every_ms: number | null;
  run_at: number | null;
  timezone: string;
  missed: "skip" | "once" | "all";
  overlap: "allow" | "skip";
  paused: boolean;
  description: string;
  next_run_at: number | null;
  last_run_at: number | null;
  last_task_id: string | null;
  last_outcome: string | null;
  created_at: number;
}

export interface ScheduleShown extends Schedule {
  upcoming: number[];
  history: { at: number; outcome: string; task_id: string | null; reason: string | null }[];
}

// GET /api/v2/live

export interface Point {
  at: number;
  created: number;
  succeeded: number;
  failed: number;
  retried: number;
  canceled: number;
  primary: number;
  retry: number;
  running: number;
  scheduled: number;
  waiting: number;
  run_p50: number | null;
  run_p95: number | null;
  wait_p95: number | null;
}

export interface Change {
  at: number;
  server: string;
  version: string;
  states: Partial<Record<State, number>>;
  lanes: { primary: number; retry: number };
  retry_share: number;
  queues: Record<string, Partial<Record<State, number>>>;
  workers: Record<string, number>;
  draining: number; // of the workers
  slots: number;
  busy: number;
  breakers: Record<string, Breaker>;
  paused: string[];
  changed: string[] | null; // null: too many to name, or a new connection
  point: Point | null;
}

export interface Snapshot extends Omit<Change, "point"> {
  step_ms: number;
  history: { [K in keyof Point]: Point[K][] };
}
