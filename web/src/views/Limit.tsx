import { useState } from "react";
import type { ReactNode } from "react";
import { remove } from "../api/client";
import { queries, seldom, useAction, useData } from "../api/data";
import type { Limit as LimitShape, Page, Queue, Service } from "../api/types";
import { Act } from "../components/act";
import { Card, Detail, Empty, Facts, Head, Loading, num, Table } from "../components/basics";
import { Confirm } from "../components/confirm";
import { LimitForm, NextStart } from "../components/limits";
import { concurrencyWords, rateWords } from "../lib/limits";
import { queueAt, serviceAt, tasksAt } from "../lib/search";
import { number } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { go, Link } from "../routes";

export default function Limit({ params }: ViewProps): ReactNode {
  const name = params.name!;
  const limit = useData<LimitShape>(`/api/v2/limits/${encodeURIComponent(name)}`);
  return (
    <Detail from={limit} same={(one) => one.name === name} title="Limit" back={["/limits", "All limits"]}>
      {(found) => <Shown limit={found} />}
    </Detail>
  );
}

function Shown({ limit }: { limit: LimitShape }): ReactNode {
  const { name, concurrency, rate, services, in_use, next_at } = limit;
  useTitle(name);
  const [changing, setChanging] = useState(false);
  const total = concurrency?.total ?? null;
  return (
    <>
      <Head title={name} lead="A limit on the tasks of all services that name it, over all servers and workers.">
        <Act needs="operate" className="primary" onClick={() => setChanging(true)}>
          Change
        </Act>
        <Delete limit={limit} />
      </Head>
      <div className="stack">
        <Card>
          <div className="stack">
            <Facts
              facts={[
                ["at once", concurrencyWords(concurrency) || "no limit"],
                ["rate", rate.length ? rate.map(rateWords).join("; ") : "no limit"],
                ["running", `${number(in_use)}${total === null ? "" : ` of ${number(total)}`}`],
                ["next start", next_at !== null && <NextStart at={next_at} />],
                [
                  "services",
                  services.length ? (
                    <span className="row">
                      {services.map((one) => (
                        <Link key={one} to={serviceAt(one)}>
                          {one}
                        </Link>
                      ))}
                    </span>
                  ) : (
                    "none: it limits nothing yet"
                  ),
                ],
              ]}
            />
            {total !== null && total > 0 && (
              <progress value={Math.min(in_use, total)} max={total} aria-label="Running, of the most at once" />
            )}
          </div>
        </Card>
        <Waiting limit={limit} />
      </div>
      {changing && <LimitForm limit={limit} onClose={() => setChanging(false)} />}
    </>
  );
}

/** The queues that it holds for, with what waits on each. */
function Waiting({ limit }: { limit: LimitShape }): ReactNode {
  const services = useData<Page<Service>>("/api/v2/services", seldom);
  const queues = useData<Page<Queue>>("/api/v2/queues");
  const types = new Set(
    services.data?.items.filter(({ name }) => limit.services.includes(name)).flatMap(({ task_types }) => task_types),
  );
  return (
    <Card title="Tasks under this limit" className="flush">
      <Loading from={queues}>
        {({ items }) => {
          const mine = items.filter(
            ({ name, limits }) => types.has(name) || limits.some((use) => use.name === limit.name),
          );
          return mine.length ? (
            <Table
              label="Tasks under this limit"
              className="cards"
              columns={["Queue", num("Waiting"), num("Running"), num("Scheduled")]}
            >
              {mine.map(({ name, states }) => (
                <tr key={name}>
                  <td>
                    <Link to={queueAt(name)}>{name}</Link>
                  </td>
                  {(["queued", "running", "scheduled"] as const).map((state) => (
                    <td key={state} className="num" data-label={state === "queued" ? "waiting" : state}>
                      {states[state] ? (
                        <Link to={tasksAt({ queue: name, states: [state] })}>{number(states[state])}</Link>
                      ) : (
                        <span className="faint">0</span>
                      )}
                    </td>
                  ))}
                </tr>
              ))}
            </Table>
          ) : (
            <Empty icon="layers" title="No queue with its tasks" />
          );
        }}
      </Loading>
    </Card>
  );
}

function Delete({ limit }: { limit: LimitShape }): ReactNode {
  const { name, services, in_use } = limit;
  const path = `/api/v2/limits/${encodeURIComponent(name)}`;
  const gone = useAction(
    async () => {
      await remove(path);
      queries.removeQueries({ queryKey: [path] }); // it would be read again, and is gone
      go("/limits");
    },
    { done: `Limit ${name} deleted`, quiet: true },
  );
  return (
    <Confirm
      question={`Delete the limit ${name}?`}
      act="Delete limit"
      action={gone}
      about={
        <p>
          {services.length
            ? `The tasks of ${services.join(", ")} start without it from then on (${number(in_use)} run now).`
            : "No service names it."}{" "}
          The deletion is recorded in the audit log with your key.
        </p>
      }
    >
      Delete
    </Confirm>
  );
}
