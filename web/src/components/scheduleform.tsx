// A schedule to add or to change; what the server finds wrong stands at its field.
import { useState } from "react";
import type { ReactNode } from "react";
import { post, Problem, put } from "../api/client";
import { seldom, useAction, useData, useTyped } from "../api/data";
import type { Flow, Page, Schedule, SchedulePreview, ScheduleShown, Service } from "../api/types";
import { bodyOf, draftOf, inZone, scheduleApi, timesOf, UNITS } from "../lib/schedule";
import type { ScheduleDraft } from "../lib/schedule";
import { serverNow } from "../lib/time";
import { Form, Refusal, Tabs } from "./basics";
import { Dialog } from "./dialog";
import { Icon } from "./icon";
import { PayloadEdit } from "./payload";
import { faultOf } from "../lib/json";

const WHAT = [
  ["type", "Task"],
  ["flow", "Flow"],
] as const;
const WHEN = [
  ["cron", "Cron"],
  ["every_ms", "Interval"],
  ["run_at", "Once"],
] as const;

export function ScheduleForm({
  schedule,
  onClose,
  after,
}: {
  schedule: Schedule | null;
  onClose: () => void;
  after?: (made: ScheduleShown) => void;
}): ReactNode {
  const flows = useData<Page<Flow>>("/api/v2/flows", seldom);
  const services = useData<Page<Service>>("/api/v2/services", seldom);
  const types = [...new Set(services.data?.items.flatMap((service) => service.task_types))];
  const known = (flows.data?.items ?? []).filter((flow) => flow.version > 0);
  const [draft, setDraft] = useState<ScheduleDraft>(() => draftOf(schedule, known, serverNow()));
  const set = (part: Partial<ScheduleDraft>): void => {
    save.reset(); // what was refused is not what stands here any more
    setDraft({ ...draft, ...part });
  };
  const body = (): Record<string, unknown> => bodyOf({ ...draft, flow: draft.flow || known[0]?.name || "" });
  const save = useAction(
    () =>
      schedule
        ? put<ScheduleShown>(scheduleApi(schedule.name), body())
        : post<ScheduleShown>("/api/v2/schedules", body()),
    {
      done: schedule ? "Saved" : "Schedule created",
      quiet: true,
      after: (made) => {
        onClose();
        after?.(made);
      },
    },
  );
  const faults = save.error instanceof Problem ? save.error.faults : [];
  const at = (field: string): string | undefined =>
    faults
      .find((fault) => fault.pointer.split("/").filter((part) => part && part !== "body")[0] === field)
      ?.message.replace(/^String should match pattern.*/, "must not contain a slash or start with a dot");
  const shown = [
    "name",
    "type",
    "flow",
    "payload",
    "params",
    "cron",
    "every_ms",
    "run_at",
    "timezone",
    "queue",
    "max_retries",
    "timeout_ms",
    "session_id",
  ];
  const elsewhere = save.error && !shown.some((field) => at(field));
  const hint = save.error instanceof Problem ? save.error.hint : null;
  const text = (
    field: "name" | "type" | "cron" | "timezone" | "queue" | "max_retries" | "timeout_ms" | "session_id",
    label: string,
    more: { hint?: string; required?: boolean; list?: string; disabled?: boolean } = {},
  ): ReactNode => {
    const { hint, ...rest } = more;
    return (
      <label className="field">
        <span>{label}</span>
        <input
          value={draft[field]}
          aria-invalid={at(field) !== undefined}
          onChange={(event) => set({ [field]: event.target.value })}
          {...rest}
        />
        {hint && <span className="faint small">{hint}</span>}
        <Fault text={at(field)} />
      </label>
    );
  };
  return (
    <Dialog title={schedule ? `Edit ${schedule.name}` : "New schedule"} onClose={onClose} wide>
      <Form onSubmit={() => save.run()}>
        {text("name", "Name", { required: true, disabled: schedule !== null })}
        <fieldset>
          <legend>What to run</legend>
          <Tabs label="What" value={draft.what} options={WHAT} onChange={(what) => set({ what })} />
          {draft.what === "type" ? (
            text("type", "Task type", { required: true, list: "types" })
          ) : (
            <label className="field">
              <span>Flow</span>
              <select value={draft.flow || known[0]?.name} onChange={(event) => set({ flow: event.target.value })}>
                {known.map((flow) => (
                  <option key={flow.id}>{flow.name}</option>
                ))}
              </select>
              <Fault text={at("flow")} />
            </label>
          )}
          <PayloadEdit
            type={draft.what === "type" ? draft.type : ""}
            label={draft.what === "type" ? "Payload" : "Parameters"}
            value={draft.given}
            onChange={(given) => set({ given })}
            rows={4}
          />
          <Fault text={at("payload") ?? at("params")} />
        </fieldset>
        <fieldset>
          <legend>When</legend>
          <Tabs label="When" value={draft.when} options={WHEN} onChange={(when) => set({ when })} />
          {draft.when === "cron" ? (
            <div className="fields">
              {text("cron", "Cron", { hint: "minute hour day month weekday", required: true })}
              {text("timezone", "Time zone", { list: "zones", required: true })}
            </div>
          ) : draft.when === "every_ms" ? (
            <div className="fields">
              <label className="field">
                <span>Every</span>
                <input
                  type="number"
                  min="0"
                  step="any"
                  required
                  value={draft.every}
                  aria-invalid={at("every_ms") !== undefined}
                  onChange={(event) => set({ every: event.target.value })}
                />
                <Fault text={at("every_ms")} />
              </label>
              <label className="field">
                <span>Unit</span>
                <select
                  value={draft.unit}
                  onChange={(event) => set({ unit: event.target.value as ScheduleDraft["unit"] })}
                >
                  {UNITS.map(([unit]) => (
                    <option key={unit}>{unit}</option>
                  ))}
                </select>
              </label>
            </div>
          ) : (
            <label className="field">
              <span>Time (in this browser's time zone)</span>
              <input
                type="datetime-local"
                required
                value={draft.at}
                aria-invalid={at("run_at") !== undefined}
                onChange={(event) => set({ at: event.target.value })}
              />
              <Fault text={at("run_at")} />
            </label>
          )}
          {draft.when !== "run_at" && <NextTimes draft={draft} />}
          <div className="fields">
            <label className="field">
              <span>Runs missed while the server was down</span>
              <select
                value={draft.missed}
                onChange={(event) => set({ missed: event.target.value as ScheduleDraft["missed"] })}
              >
                <option value="once">run once</option>
                <option value="skip">skip</option>
                <option value="all">run all</option>
              </select>
            </label>
            <label className="field">
              <span>While the previous run is still going</span>
              <select
                value={draft.overlap}
                onChange={(event) => set({ overlap: event.target.value as ScheduleDraft["overlap"] })}
              >
                <option value="allow">allow overlap</option>
                <option value="skip">skip</option>
              </select>
            </label>
          </div>
        </fieldset>
        {draft.what === "type" && (
          <details>
            <summary className="faint">Task options</summary>
            <div className="fields">
              {text("queue", "Queue")}
              <label className="field">
                <span>Priority</span>
                <select
                  value={draft.priority}
                  onChange={(event) => set({ priority: event.target.value as ScheduleDraft["priority"] })}
                >
                  <option value="">default</option>
                  <option>high</option>
                  <option>normal</option>
                  <option>low</option>
                </select>
              </label>
              {text("max_retries", "Retries")}
              {text("timeout_ms", "Timeout (ms)")}
              {text("session_id", "Session")}
              <label className="check">
                <input
                  type="checkbox"
                  checked={draft.requires_approval}
                  onChange={(event) => set({ requires_approval: event.target.checked })}
                />{" "}
                Requires approval
              </label>
            </div>
          </details>
        )}
        {elsewhere ? <Refusal of={save} /> : hint && <p className="faint small">{hint}</p>}
        <datalist id="types">
          {types.map((type) => (
            <option key={type} value={type} />
          ))}
        </datalist>
        <datalist id="zones">
          {Intl.supportedValuesOf("timeZone").map((zone) => (
            <option key={zone} value={zone} />
          ))}
        </datalist>
        <div className="dialog-acts">
          <button className="primary" disabled={save.busy || faultOf(draft.given) !== null}>
            <Icon name="calendar" /> {schedule ? "Save" : "Create schedule"}
          </button>
        </div>
      </Form>
    </Dialog>
  );
}

const PAUSE_MS = 300; // after the last key

/** When it would run, before anything is saved. */
function NextTimes({ draft }: { draft: ScheduleDraft }): ReactNode {
  const asked = JSON.stringify(timesOf(draft));
  const { data: found } = useTyped("schedule", asked, PAUSE_MS, (text) =>
    post<SchedulePreview>("/api/v2/schedules/preview", JSON.parse(text)),
  );
  if (!found) return null;
  if (found.fault !== null)
    return (
      <p className="fault" role="status" aria-label="Next times">
        {found.fault}
      </p>
    );
  return (
    <div className="faint small" role="status" aria-label="Next times">
      {found.description}. Next:{" "}
      {found.upcoming.map((at) => inZone(at, draft.timezone, "short")).join(" · ") || "never"}
    </div>
  );
}

function Fault({ text }: { text: string | undefined }): ReactNode {
  return text ? (
    <span className="fault" role="alert">
      {text}
    </span>
  ) : null;
}
