import type { ReactNode } from "react";
import { seldom, useData } from "../api/data";
import { setPaused, useLive } from "../api/live";
import type { Health } from "../api/types";
import { Card, Facts, Head, Loading, Mark, Tabs } from "../components/basics";
import { Icon } from "../components/icon";
import { useIdentity, useTheme } from "../lib/kept";
import type { Tone } from "../words";

const TONES: Record<string, Tone> = {
  healthy: "good",
  closed: "good",
  degraded: "wait",
  half_open: "wait",
  unhealthy: "bad",
  open: "bad",
};
const OUTSIDE = [
  ["/openapi.json", "API reference"],
  ["/metrics", "Prometheus metrics"],
  ["/health", "health, for alerts"],
  ["/ready", "readiness, for load balancers"],
] as const;

export default function Settings(): ReactNode {
  const health = useData<Health>("/health", seldom);
  const { now, status } = useLive();
  const [theme, setTheme] = useTheme();
  const [by, setBy] = useIdentity();
  return (
    <>
      <Head title="Settings and health" />
      <div className="grid-2">
        <Card
          title="Health"
          acts={
            <button type="button" onClick={() => void health.refetch()}>
              <Icon name="redo" /> Refresh
            </button>
          }
        >
          <Loading from={health}>{(told) => <Components health={told} />}</Loading>
        </Card>
        <div className="stack">
          <Card title="This page">
            <div className="stack">
              <div className="row">
                <span className="grow">Theme</span>
                <Tabs
                  label="Theme of the page"
                  value={theme}
                  onChange={setTheme}
                  options={[
                    ["system", "System"],
                    ["light", "Light"],
                    ["dark", "Dark"],
                  ]}
                />
              </div>
              <div className="row">
                <span className="grow">Live updates</span>
                <Tabs
                  label="Live updates"
                  value={status === "paused" ? "off" : "on"}
                  onChange={(value) => setPaused(value === "off")}
                  options={[
                    ["on", "On"],
                    ["off", "Paused"],
                  ]}
                />
              </div>
              <label className="row">
                <span className="grow">Your name (recorded with approvals and pauses)</span>
                <input className="narrow" value={by} maxLength={128} onChange={(event) => setBy(event.target.value)} />
              </label>
            </div>
          </Card>
          <Card title="Server">
            <Facts
              facts={[
                ["version", now?.version ?? health.data?.version],
                ["address", <span className="mono">{location.origin}</span>],
                ["server id", now && <span className="mono small">{now.server}</span>],
              ]}
            />
            <ul className="links">
              {OUTSIDE.map(([path, what]) => (
                <li key={path}>
                  <a href={path} className="mono">
                    {path}
                  </a>{" "}
                  <span className="faint">{what}</span>
                </li>
              ))}
            </ul>
          </Card>
        </div>
      </div>
    </>
  );
}

function Components({ health }: { health: Health }): ReactNode {
  return (
    <div className="stack">
      <p className="row">
        <Status status={health.status} /> <span className="faint">Onward {health.version}</span>
      </p>
      <div className="scroll" tabIndex={0} role="region" aria-label="Components">
        <table>
          <tbody>
            {Object.entries(health.details).map(([name, { status, ...more }]) => (
              <tr key={name}>
                <th scope="row">{name.replaceAll("_", " ")}</th>
                <td>
                  <Status status={status} /> <span className="faint small">{plain(more)}</span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

/** A nested value as one line. */
function plain(value: unknown): string {
  if (typeof value !== "object" || value === null) return String(value);
  return Object.entries(value)
    .map(([key, one]) =>
      typeof one === "object" && one !== null ? plain(one) : `${key.replaceAll("_", " ")} ${String(one)}`,
    )
    .filter(Boolean)
    .join(", ");
}

function Status({ status }: { status: string }): ReactNode {
  const tone = TONES[status] ?? "idle";
  return (
    <Mark tone={tone} icon={tone === "good" ? "check" : tone === "bad" ? "cross" : "dots"}>
      {status.replaceAll("_", " ")}
    </Mark>
  );
}
