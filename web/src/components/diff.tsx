// Two values, line by line: what was removed and what was added, with some lines around it.
import type { ReactNode } from "react";
import { diffOf } from "../lib/definition";

const CONTEXT = 3;

export function Diff({ before, after }: { before: unknown; after: unknown }): ReactNode {
  const lines = diffOf(before, after);
  const near = lines.map((_, index) =>
    lines.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some((line) => line.sign !== " "),
  );
  if (!near.includes(true)) return <p className="faint">No changes</p>;
  return (
    <div className="diff" role="region" aria-label="Changes" tabIndex={0}>
      {lines.map((line, index) =>
        near[index] ? (
          <div key={index} className={line.sign === "+" ? "diff-new" : line.sign === "-" ? "diff-old" : ""}>
            <span aria-hidden="true">{line.sign} </span>
            {line.sign !== " " && <span className="sr">{line.sign === "+" ? "added: " : "removed: "}</span>}
            {line.text}
          </div>
        ) : near[index - 1] ? (
          <div key={index} className="faint">
            ⋯
          </div>
        ) : null,
      )}
    </div>
  );
}
