import type { ReactNode } from "react";
import { useData } from "../api/data";
import type { Limit, Page } from "../api/types";
import { Act } from "../components/act";
import { Card, Empty, Head, Loading, num, Table } from "../components/basics";
import { Icon } from "../components/icon";
import { LimitForm, NextStart } from "../components/limits";
import { concurrencyWords, rateWords } from "../lib/limits";
import { limitAt, serviceAt } from "../lib/search";
import { number } from "../lib/time";
import { Link, useParam } from "../routes";

export default function Limits(): ReactNode {
  const limits = useData<Page<Limit>>("/api/v2/limits");
  const [adding, setAdding] = useParam("new");
  return (
    <>
      <Head title="Limits" lead="Limits that services share. A service's own limits are shown with it and its queue.">
        <Act needs="operate" className="primary" onClick={() => setAdding("1")}>
          <Icon name="plus" /> New limit
        </Act>
      </Head>
      <Loading from={limits}>
        {({ items }) =>
          items.length ? (
            <Card className="flush">
              <Table
                label="Limits"
                className="cards"
                columns={["Limit", "At once", "Rate", "Services", num("Running"), num("Next start")]}
              >
                {items.map((limit) => (
                  <Row key={limit.name} limit={limit} />
                ))}
              </Table>
            </Card>
          ) : (
            <Empty icon="gauge" title="No shared limits yet" command="onward limit set crm --concurrency 4">
              A service names the limits that it shares with others: <code>limits=[&quot;crm&quot;]</code>.
            </Empty>
          )
        }
      </Loading>
      {adding && <LimitForm limit={null} onClose={() => setAdding("")} />}
    </>
  );
}

function Row({ limit }: { limit: Limit }): ReactNode {
  const total = limit.concurrency?.total ?? null;
  return (
    <tr>
      <td>
        <Link to={limitAt(limit.name)}>{limit.name}</Link>
      </td>
      <td data-label="at once">{concurrencyWords(limit.concurrency) || <span className="faint">no limit</span>}</td>
      <td data-label="rate">
        {limit.rate.length ? limit.rate.map(rateWords).join("; ") : <span className="faint">no limit</span>}
      </td>
      <td data-label="services">
        {limit.services.length ? (
          <span className="row">
            {limit.services.map((name) => (
              <Link key={name} to={serviceAt(name)}>
                {name}
              </Link>
            ))}
          </span>
        ) : (
          <span className="faint">none</span>
        )}
      </td>
      <td className="num" data-label="running">
        {number(limit.in_use)}
        {total !== null && ` of ${number(total)}`}
      </td>
      <td className="num" data-label="next start">
        <NextStart at={limit.next_at} />
      </td>
    </tr>
  );
}
