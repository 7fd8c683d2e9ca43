import type { ReactNode } from "react";
import { useData } from "../api/data";
import type { Page, Service, Worker } from "../api/types";
import { Ago, Card, Empty, Head, Loading } from "../components/basics";
import { tasksAt } from "../lib/search";
import { number } from "../lib/time";
import { Link, useParam } from "../routes";

export default function Workers(): ReactNode {
  const [transport, setTransport] = useParam("transport");
  const workers = useData<Page<Worker>>("/api/v2/workers");
  const services = useData<Page<Service>>("/api/v2/services", (changed) => changed === null);
  return (
    <>
      <Head title="Workers" lead="Who is connected, how, and what they serve." />
      <div className="stack">
        <Loading from={workers}>
          {({ items }) => (
            <>
              <Transports workers={items} chosen={transport} choose={setTransport} />
              <Connected workers={transport ? items.filter((one) => one.transport === transport) : items} />
            </>
          )}
        </Loading>
        <Card title="Declared services" className="flush">
          <Loading from={services}>{({ items }) => <Services services={items} />}</Loading>
        </Card>
      </div>
    </>
  );
}

function Transports({ workers, chosen, choose }: { workers: readonly Worker[]; chosen: string; choose: (transport: string) => void }): ReactNode {
  const counts = new Map<string, number>();
  for (const worker of workers) counts.set(worker.transport, (counts.get(worker.transport) ?? 0) + 1);
  if (counts.size < 2 && !chosen) return null;
  return (
    <div className="pills" role="group" aria-label="Transports">
      {[...counts].map(([transport, count]) => (
        <button key={transport} type="button" className="pill" aria-pressed={transport === chosen} onClick={() => choose(transport === chosen ? "" : transport)}>
          {transport} <b>{number(count)}</b>
        </button>
      ))}
    </div>
  );
}

function Connected({ workers }: { workers: readonly Worker[] }): ReactNode {
  if (!workers.length)
    return (
      <Card>
        <Empty icon="cpu" title="No worker is connected" command="onward worker module:attr">
          Tasks are taken and wait. A worker is a Python file with a function in it:
        </Empty>
      </Card>
    );
  return (
    <Card className="flush">
      <div className="scroll" tabIndex={0} role="region" aria-label="Connected workers">
        <table>
          <thead>
            <tr>
              <th>Worker</th>
              <th>Transport</th>
              <th>Serves</th>
              <th className="num">Slots</th>
              <th className="num">Since</th>
            </tr>
          </thead>
          <tbody>
            {workers.map((worker) => (
              <tr key={`${worker.transport} ${worker.id}`}>
                <td className="mono small">
                  {worker.id}
                  {worker.stand_in && (
                    <>
                      {" "}
                      <span className="badge tone-idle" title="Serves a group only while nobody else does">
                        stand-in
                      </span>
                    </>
                  )}
                </td>
                <td>{worker.transport}</td>
                <td>
                  <span className="row">
                    {worker.queues.map((queue) => (
                      <Link key={queue} to={tasksAt({ queue })}>
                        {queue}
                      </Link>
                    ))}
                  </span>
                </td>
                <td className="num">{number(worker.slots)}</td>
                <td className="num">
                  <Ago at={worker.connected_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function Services({ services }: { services: readonly Service[] }): ReactNode {
  if (!services.length) return <Empty title="No service is declared" command={`curl -s ${location.origin}/api/v2/services -d '{"name": "report", "task_types": ["report"]}'`} />;
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label="Declared services">
      <table>
        <thead>
          <tr>
            <th>Service</th>
            <th>Task types</th>
            <th>Checked</th>
            <th>Rules</th>
          </tr>
        </thead>
        <tbody>
          {services.map((service) => (
            <tr key={service.name}>
              <td>{service.name}</td>
              <td>
                <span className="row">
                  {service.task_types.map((type) => (
                    <Link key={type} to={tasksAt({ type })}>
                      {type}
                    </Link>
                  ))}
                </span>
              </td>
              <td>{Object.keys(service.schema).length ? "by schema" : <span className="faint">no schema</span>}</td>
              <td>
                <span className="row">
                  {service.requires_approval && <span className="badge tone-wait">asks for approval</span>}
                  {service.via !== "any" && <span className="badge tone-idle">{service.via}</span>}
                  {service.max_retries !== null && <span className="faint">{service.max_retries} retries</span>}
                  {service.timeout_ms !== null && <span className="faint">{service.timeout_ms / 1000} s</span>}
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
