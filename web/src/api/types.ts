// The wire's types under the names that the page uses. All are taken from the server's OpenAPI document.
import type { components } from "./schema";

type Schemas = components["schemas"];

/** The document has one for each kind of item; this is all of them. */
export type Page<T> = Omit<Schemas["Page_TaskView_"], "items"> & { items: T[] };
export type FieldFault = Schemas["FieldFault"];

export type Task = Schemas["TaskView"];
export type State = Task["state"];
export type Phase = Task["phase"];
export type Fault = NonNullable<Task["error"]>;
export type TaskEvent = Schemas["TaskEvent"];
export type LogRecord = Schemas["LogRecord"];
export type Explanation = Schemas["Explanation"];
export type Approval = Schemas["ApprovalView"];
export type DeadGroup = Schemas["DeadGroup"];
export type Replayed = Schemas["Replayed"];
export type Abandoned = Schemas["Abandoned"];

export type Worker = Schemas["WorkerView"];
export type Service = Schemas["ServiceView"];
export type Queue = Schemas["QueueView"];
export type Batch = Schemas["BatchView"];
export type Limit = Schemas["LimitView"];
export type LimitUse = Schemas["LimitUse"];
export type RateLimit = Schemas["RateLimit"];
export type Operation = Schemas["OperationView"];
export type OperationFilter = Partial<Schemas["OperationFilter"]>;
export type AttentionItem = Schemas["AttentionItem"];
export type Session = Schemas["SessionView"];
export type Notification = Schemas["NotificationView"];
export type Preferences = Schemas["PreferencesView"];
export type Health = Schemas["HealthView"];

export type FlowNode = Schemas["NodeView"];
export type Flaw = Schemas["FlawView"];
export type FlowVersion = Schemas["VersionBrief"];
export type Validated = Schemas["Validation"];
// What a path does not show of a flow is absent: a list shows a Flow, a version of it is Drawn.
type FlowView = Schemas["FlowView"];
export type Flow = Pick<FlowView, "id" | "name" | "version" | "created_at">;
export type Drawn = FlowVersion & Pick<FlowView, "flow_id" | "name" | "definition" | "warnings" | "nodes">;
export type FlowShown = Flow & Partial<Drawn> & Pick<FlowView, "versions">;

export type NodeRun = Schemas["NodeRun"];
export type NodeStatus = NodeRun["status"];
export type RunBrief = Schemas["RunView"];
export type Run = Schemas["RunDetail"];
export type SharedState = Schemas["SharedView"];

export type Schedule = Schemas["ScheduleView"];
export type SchedulePreview = Schemas["SchedulePreview"];
export type ScheduleShown = Schemas["ScheduleDetail"];

export type SeriesView = Schemas["SeriesView"];
export type ServiceSeries = Schemas["ServiceSeries"];
export type Environment = Schemas["Environment"];
export type Point = Schemas["Point"];
export type Change = Schemas["Change"];
/** The document names no keys of the history: they are the fields of a point. */
export type Snapshot = Schemas["Snapshot"] & { history: { [K in keyof Point]: Point[K][] } };

export type Me = Schemas["Me"];
export type Key = Schemas["KeyView"];
export type KeyCreated = Schemas["KeyCreated"];
export type CreateKey = Schemas["CreateKey"];
export type AuditEntry = Schemas["AuditEntry"];
