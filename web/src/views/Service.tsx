import type { ReactNode } from "react";
import { seldom, useData } from "../api/data";
import type { Page, Service as ServiceShape } from "../api/types";
import { Card, Empty, Facts, Head, Loading, Tabs } from "../components/basics";
import { Icon } from "../components/icon";
import { Json } from "../components/json";
import { TaskList } from "../components/tasklist";
import { Work } from "../components/work";
import { concurrencyWords, rateWords } from "../lib/limits";
import { limitAt, parseSearch, queueAt, tasksAt } from "../lib/search";
import { RANGES } from "../lib/series";
import type { RangeName } from "../lib/series";
import { span } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { Link, useParam } from "../routes";
import { ServedBy } from "./Queue";

/** Of a service by its name, or by the type of its tasks. */
export default function Service({ params }: ViewProps): ReactNode {
  const name = params.name!;
  useTitle(name);
  const services = useData<Page<ServiceShape>>("/api/v2/services", seldom);
  return (
    <Loading from={services}>
      {({ items }) => (
        <Shown
          key={name}
          name={name}
          service={items.find((one) => one.name === name) ?? items.find((one) => one.task_types.includes(name)) ?? null}
        />
      )}
    </Loading>
  );
}

function Shown({ name, service }: { name: string; service: ServiceShape | null }): ReactNode {
  const [range, setRange] = useParam("range", "1h");
  const types = service?.task_types.length ? service.task_types : [name];
  const [chosen, setType] = useParam("type", types.includes(name) ? name : types[0]);
  const type = types.includes(chosen) ? chosen : types[0]!;
  const schema = service?.schema[type];
  return (
    <>
      <Head title={name} lead={service ? undefined : "No service declares this type; it is known by its tasks."}>
        {types.length > 1 && (
          <Tabs
            label="Task type"
            value={type}
            options={types.map((one) => [one, one] as const)}
            onChange={(next) => setType(next)}
          />
        )}
        <Tabs
          label="Range"
          value={range as RangeName}
          options={RANGES.map(([one, label]) => [one, label] as const)}
          onChange={setRange}
        />
        <Link to="/playground?door=native" className="button">
          <Icon name="flask" /> Submit a task
        </Link>
      </Head>
      <div className="stack">
        {service && (
          <Card>
            <Facts
              facts={[
                ["task types", types.join(", ")],
                ["transport", service.via === "any" ? "any" : service.via],
                ["requires approval", service.requires_approval && "yes"],
                ["timeout", service.timeout_ms !== null && span(service.timeout_ms)],
                ["retries", service.max_retries !== null && String(service.max_retries)],
                ["at once", concurrencyWords(service.concurrency)],
                ["rate", service.rate.length > 0 && service.rate.map(rateWords).join("; ")],
                ["partition by", service.partition_by && <code>{service.partition_by}</code>],
                [
                  "shared limits",
                  service.limits.length > 0 && (
                    <span className="row">
                      {service.limits.map((limit) => (
                        <Link key={limit} to={limitAt(limit)}>
                          {limit}
                        </Link>
                      ))}
                    </span>
                  ),
                ],
                ["hidden parts", service.sensitive.length > 0 && service.sensitive.join(", ")],
                ["queue", <Link to={queueAt(type)}>{type}</Link>],
                ["failed", <Link to={tasksAt({ type, states: ["failed", "dead"] })}>show them</Link>],
              ]}
            />
          </Card>
        )}
        <Work range={range} queue={type} service={type} />
        <ServedBy queue={type} />
        {schema !== undefined && (
          <Card title="Schema of the payload">
            <Json value={schema} label="schema" />
          </Card>
        )}
        <h2>Tasks</h2>
        <TaskList
          key={type}
          search={{ ...parseSearch(""), type }}
          empty={<Empty icon="list" title="No tasks of this type" />}
        />
      </div>
    </>
  );
}
