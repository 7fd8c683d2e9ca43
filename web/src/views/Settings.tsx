import type { ReactNode } from "react";
import { seldom, useAction, useData } from "../api/data";
import { setPaused, useLive } from "../api/live";
import { logOut, useMe, useName } from "../api/me";
import type { Health } from "../api/types";
import { Ago, Card, Facts, Head, Loading, Mark, Tabs } from "../components/basics";
import { Icon } from "../components/icon";
import { useTheme } from "../lib/kept";
import { tasksAt } from "../lib/search";
import { Link } from "../routes";
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
  const { now, status } = useLive();
  const health = useData<Health>("/health", seldom, JSON.stringify([now?.breakers, now?.workers]));
  const [theme, setTheme] = useTheme();
  const { name, setName } = useName();
  const me = useMe();
  const leave = useAction(logOut, { after: () => location.reload() });
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
              {setName && (
                <label className="row">
                  <span className="grow">Your name (recorded with approvals and pauses)</span>
                  <input
                    className="narrow"
                    value={name}
                    maxLength={128}
                    onChange={(event) => setName(event.target.value)}
                  />
                </label>
              )}
            </div>
          </Card>
          {me?.key && (
            <Card
              title="Your key"
              acts={
                <button type="button" disabled={leave.busy} onClick={() => leave.run()}>
                  Log out
                </button>
              }
            >
              <Facts
                facts={[
                  ["name", me.key.name],
                  ["id", <span className="mono small">{me.key.id}</span>],
                  ["scopes", me.key.scopes.join(", ")],
                ]}
              />
            </Card>
          )}
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
                  <Status status={status} />{" "}
                  {"services" in more ? (
                    <Breakers services={more.services} />
                  ) : (
                    <span className="faint small">{plain(more)}</span>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Breakers({ services }: { services: Health["details"]["circuit_breaker"]["services"] }): ReactNode {
  return (
    <ul className="small">
      {Object.entries(services).map(([name, breaker]) => (
        <li key={name}>
          <Link to={tasksAt({ queue: name })}>{name}</Link>{" "}
          <span className="faint">
            {breaker.failures} of {breaker.calls} calls failed; next try <Ago at={Date.parse(breaker.until)} />
          </span>
        </li>
      ))}
    </ul>
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
