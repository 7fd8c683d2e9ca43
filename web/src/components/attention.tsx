// What needs a person, worst first, each with the way there. Which it is, the server decides.
import type { ReactNode } from "react";
import { seldom, useData } from "../api/data";
import type { AttentionItem, Change, Page } from "../api/types";
import { ago, useNow } from "../lib/time";
import { Link } from "../routes";
import type { Tone } from "../words";
import { Card, Mark, Notice, Skeleton } from "./basics";
import type { IconName } from "./icon";

const RULES: Record<AttentionItem["rule"], readonly [tone: Tone, icon: IconName, label: string]> = {
  breaker_open: ["bad", "bolt", "circuit breaker open"],
  no_worker: ["bad", "warn", "no worker"],
  dead: ["bad", "skull", "dead letters"],
  oldest_waiting: ["wait", "clock", "waits too long"],
  approval_open: ["wait", "hand", "approval open"],
  schedule_refused: ["bad", "stop", "schedule refused"],
  queue_paused: ["wait", "pause", "paused"],
};
const EVERY_MS = 15_000;

export function Attention({ now }: { now: Change }): ReactNode {
  const time = useNow(5_000);
  // Read again when another queue is concerned and, because some rules go by the clock, now and then; not at every task.
  const shut = Object.entries(now.breakers).map(([queue, { state }]) => [queue, state]);
  const held = Object.entries(now.queues).map(([queue, { queued, dead }]) => [queue, !!queued, dead]);
  const edition = JSON.stringify([shut, now.paused, held, now.workers, Math.floor(time / EVERY_MS)]);
  const found = useData<Page<AttentionItem>>("/api/v2/attention", seldom, edition);
  if (!found.data) return <Skeleton rows={1} />;
  if (!found.data.items.length)
    return (
      <Notice tone="good" icon="check">
        Nothing needs attention: every queue with work has a worker, no circuit breaker is open, nothing waits too long.
      </Notice>
    );
  return (
    <Card title="Needs attention">
      <ul className="stack-tight attention">
        {found.data.items.map(({ rule, target, since, message, link }) => {
          const [tone, icon, label] = RULES[rule];
          return (
            <li key={`${rule} ${target}`} className="row">
              <Mark tone={tone} icon={icon}>
                {label}
              </Mark>
              <span className="grow">{message}</span>
              {since !== null && <span className="faint">{ago(since, time)}</span>}
              <Link to={link.replace(/^\/ui/, "")}>Open</Link>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}
