import type { ReactNode } from "react";
import { seldom, useData } from "../api/data";
import type { Page, Service, Worker } from "../api/types";
import { Ago, Card, Empty, Head, Loading, Mark, num, spoken, Table } from "../components/basics";
import { DrainButton } from "../components/drain";
import { queueAt, serviceAt, tasksAt } from "../lib/search";
import { number } from "../lib/time";
import { Link, useParam } from "../routes";

export default function Workers(): ReactNode {
  const [transport, setTransport] = useParam("transport");
  const workers = useData<Page<Worker>>("/api/v2/workers");
  const services = useData<Page<Service>>("/api/v2/services", seldom);
  return (
    <>
      <Head title="Workers" lead="Connected workers and what they serve." />
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

function Transports({
  workers,
  chosen,
  choose,
}: {
  workers: readonly Worker[];
  chosen: string;
  choose: (transport: string) => void;
}): ReactNode {
  const counts = new Map<string, number>();
  for (const worker of workers) counts.set(worker.transport, (counts.get(worker.transport) ?? 0) + 1);
  if (counts.size < 2 && !chosen) return null;
  return (
    <div className="pills" role="group" aria-label="Transports">
      {[...counts].map(([transport, count]) => (
        <button
          key={transport}
          type="button"
          className="pill"
          aria-pressed={transport === chosen}
          onClick={() => choose(transport === chosen ? "" : transport)}
        >
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
          Tasks are accepted and wait. Start a worker from a Python module:
        </Empty>
      </Card>
    );
  return (
    <Card className="flush">
      <Table
        label="Connected workers"
        className="cards"
        columns={["Worker", "Serves", num("Busy / slots"), num("Connected"), spoken("Action")]}
      >
        {workers.map((worker) => (
          <tr key={`${worker.transport} ${worker.id}`}>
            <td>
              <Link to={`/workers/${encodeURIComponent(worker.id)}`} className="mono small">
                {worker.id}
              </Link>
              <div className="row small">
                <span className="faint">{worker.transport}</span>
                {worker.stand_in && (
                  <Mark tone="idle" title="Serves a queue only while no other worker does">
                    {" "}
                    fallback
                  </Mark>
                )}
                {worker.draining && (
                  <Mark tone="wait" icon="clock">
                    {worker.busy === 0 ? "drained" : "draining"}
                  </Mark>
                )}
              </div>
            </td>
            <td>
              <span className="row">
                {worker.queues.map((queue) => (
                  <Link key={queue} to={queueAt(queue)}>
                    {queue}
                  </Link>
                ))}
              </span>
            </td>
            <td className="num" data-label="busy / slots">
              {worker.busy === null ? "– / " : `${number(worker.busy)} / `}
              {number(worker.slots)}
            </td>
            <td className="num" data-label="connected">
              <Ago at={worker.connected_at} />
            </td>
            <td className="right act-cell">
              <DrainButton worker={worker} />
            </td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

function Services({ services }: { services: readonly Service[] }): ReactNode {
  if (!services.length)
    return (
      <Empty
        title="No services declared"
        command={`curl -s ${location.origin}/api/v2/services -d '{"name": "report", "task_types": ["report"]}'`}
      />
    );
  return (
    <Table label="Declared services" className="cards" columns={["Service", "Task types", "Validation", "Options"]}>
      {services.map((service) => (
        <tr key={service.name}>
          <td>
            <Link to={serviceAt(service.name)}>{service.name}</Link>
          </td>
          <td>
            <span className="row">
              {service.task_types.map((type) => (
                <Link key={type} to={tasksAt({ type })}>
                  {type}
                </Link>
              ))}
            </span>
          </td>
          <td>{Object.keys(service.schema).length ? "JSON Schema" : <span className="faint">none</span>}</td>
          <td>
            <span className="row">
              {service.requires_approval && <Mark tone="wait">requires approval</Mark>}
              {service.via !== "any" && <Mark tone="idle">{service.via}</Mark>}
              {service.max_retries !== null && (
                <span className="faint">
                  {service.max_retries === 1 ? "1 retry" : `${service.max_retries} retries`}
                </span>
              )}
              {service.timeout_ms !== null && <span className="faint">timeout {service.timeout_ms / 1000} s</span>}
            </span>
          </td>
        </tr>
      ))}
    </Table>
  );
}
