import type { ReactNode } from "react";
import { url } from "../api/client";
import { seldom, useData } from "../api/data";
import type { AuditEntry, Page } from "../api/types";
import { Card, Empty, Head, Loading, Table } from "../components/basics";
import { full, serverNow } from "../lib/time";
import { setParams, useParam } from "../routes";

const ACTIONS = [
  "key.create",
  "key.revoke",
  "login",
  "approval.decide",
  "task.cancel",
  "task.replay",
  "task.abandon",
  "queue.pause",
  "queue.resume",
  "worker.drain",
  "service.declare",
  "flow.publish",
  "limit.change",
  "schedule.change",
  "operation.start",
];
const HOUR_MS = 3_600_000;
const SINCE = [
  ["", "90 days"],
  ["168", "7 days"],
  ["24", "24 hours"],
  ["1", "1 hour"],
] as const;
const MINUTE_MS = 60_000;

export default function Audit(): ReactNode {
  const [by] = useParam("by");
  const [action] = useParam("action");
  const [hours] = useParam("since");
  const [cursor] = useParam("cursor");
  // By the minute: the path must not change with every drawing.
  const since = hours && Math.floor((serverNow() - Number(hours) * HOUR_MS) / MINUTE_MS) * MINUTE_MS;
  const audit = useData<Page<AuditEntry>>(url("/api/v2/audit", { by, action, since, cursor }), seldom);
  const set = (part: Record<string, string>): void => setParams({ cursor: "", ...part });
  return (
    <>
      <Head title="Audit log" lead="What was done, when and with which key. Kept for 90 days." />
      <div className="stack">
        <div className="fields">
          <label className="field">
            <span>Key</span>
            <input
              value={by}
              placeholder="any"
              onChange={(event) => setParams({ by: event.target.value, cursor: "" }, { replace: true })}
            />
          </label>
          <label className="field">
            <span>Action</span>
            <select value={action} onChange={(event) => set({ action: event.target.value })}>
              <option value="">any</option>
              {ACTIONS.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          <label className="field">
            <span>Within the last</span>
            <select value={hours} onChange={(event) => set({ since: event.target.value })}>
              {SINCE.map(([value, text]) => (
                <option key={value} value={value}>
                  {text}
                </option>
              ))}
            </select>
          </label>
        </div>
        <Loading from={audit}>
          {({ items, next }) =>
            items.length ? (
              <>
                <Card className="flush">
                  <Table label="Audit log" className="cards" columns={["When", "Key", "Action", "Target", "Details"]}>
                    {items.map((entry, index) => (
                      <tr key={`${entry.at} ${index}`}>
                        <td className="num">{full(entry.at)}</td>
                        <td data-label="key">{entry.by ?? <span className="faint">no key</span>}</td>
                        <td data-label="action">{entry.action}</td>
                        <td className="mono small" data-label="target">
                          {entry.target}
                        </td>
                        <td className="small">{detailOf(entry)}</td>
                      </tr>
                    ))}
                  </Table>
                </Card>
                <p className="row">
                  {cursor && (
                    <button type="button" onClick={() => set({})}>
                      Newest
                    </button>
                  )}
                  {next && (
                    <button type="button" onClick={() => setParams({ cursor: next })}>
                      Older
                    </button>
                  )}
                </p>
              </>
            ) : (
              <Empty icon="list" title={by || action || hours ? "Nothing matches" : "Nothing recorded yet"}>
                Log-ins, keys, approvals, cancels, retries, pauses and whatever else changes something are recorded.
              </Empty>
            )
          }
        </Loading>
      </div>
    </>
  );
}

function detailOf({ detail }: AuditEntry): string {
  return Object.entries(detail)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}
