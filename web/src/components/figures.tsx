// The figures at two levels: how it stands now, and what was done in the last hour. Each leads to its tasks.
import type { ReactNode } from "react";
import type { Change, SeriesView, State } from "../api/types";
import { failureShare, inWords, withinRange } from "../lib/series";
import { tasksAt } from "../lib/search";
import { number, percent } from "../lib/time";
import { Link } from "../routes";
import { phaseWord } from "../words";
import type { Tone } from "../words";
import { Icon } from "./icon";
import type { IconName } from "./icon";

const NOW: readonly State[] = ["queued", "running", "scheduled", "waiting", "dead"];

export function Figures({
  now,
  series,
  range,
}: {
  now: Change;
  series: SeriesView | undefined;
  range: string;
}): ReactNode {
  const totals = series?.totals ?? {};
  const failed = (totals.failed ?? 0) + (totals.dead ?? 0);
  const share = failureShare(totals);
  const lately = withinRange(range);
  const count = (value: number | undefined): string => (series && value !== undefined ? number(value) : "–");
  return (
    <div className="figures">
      <section aria-label="Now">
        <h2 className="minor faint">Now</h2>
        <ul className="tiles">
          {NOW.map((state) => {
            const { label, tone, icon } = phaseWord(state);
            const held = now.states[state] ?? 0;
            const to = state === "dead" ? "/dead-letters" : tasksAt({ states: [state] });
            return <Tile key={state} {...{ label, tone, icon, to }} value={number(held)} none={!held} />;
          })}
        </ul>
      </section>
      <section aria-label={inWords(range)}>
        <h2 className="minor faint">{inWords(range).replace("last", "Last")}</h2>
        <ul className="tiles">
          <Tile
            label="submitted"
            tone="idle"
            icon="plus"
            to={tasksAt({ created: lately })}
            value={count(totals.submitted)}
          />
          <Tile
            label="succeeded"
            tone="good"
            icon="check"
            to={tasksAt({ states: ["succeeded"], finished: lately })}
            value={count(totals.succeeded)}
            none={!totals.succeeded}
          />
          <Tile
            label="failed"
            tone="bad"
            icon="cross"
            to={tasksAt({ states: ["failed", "dead"], finished: lately })}
            value={count(series && failed)}
            none={!failed}
          />
          <Tile
            label="failure share"
            tone={failed ? "bad" : "off"}
            icon="chart"
            to={tasksAt({ states: ["failed", "dead"], finished: lately })}
            value={share === null ? "–" : percent(share)}
            none={!share}
          />
          <Tile
            label="retried"
            tone="wait"
            icon="redo"
            to={tasksAt({ states: ["scheduled", "queued"] })}
            value={count(totals.retried)}
            none={!totals.retried}
          />
        </ul>
      </section>
    </div>
  );
}

function Tile({
  label,
  tone,
  icon,
  to,
  value,
  none = false,
}: {
  label: string;
  tone: Tone;
  icon: IconName;
  to: string;
  value: string;
  none?: boolean;
}): ReactNode {
  return (
    <li>
      <Link to={to} className={`tile ${none ? "none" : ""}`}>
        <span className="tile-number">{value}</span>
        <span className={`dot-${tone}`}>
          <Icon name={icon} size={13} /> {label}
        </span>
      </Link>
    </li>
  );
}
