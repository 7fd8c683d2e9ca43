// What stays while pages change: navigation, the state of the connection, keys.
import { Suspense, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import { setPaused, useLive } from "../api/live";
import { useLack, useMe } from "../api/me";
import { goFirst, useKeys } from "../lib/keys";
import { usePageTitle } from "../lib/title";
import { clock, setServerTime } from "../lib/time";
import { useTheme } from "../lib/kept";
import type { Theme } from "../lib/kept";
import { PAGES } from "../pages";
import { go, Link, usePlace } from "../routes";
import { Skeleton } from "./basics";
import { Brand } from "./brand";
import { BulkBars } from "./bulk";
import { Icon } from "./icon";
import { Help, Palette } from "./palette";
import { say, Toasts } from "./toasts";

const GROUPS = ["watch", "act", "more"] as const;
const THEMES: readonly [Theme, "screen" | "sun" | "moon"][] = [
  ["system", "screen"],
  ["light", "sun"],
  ["dark", "moon"],
];

export function Layout({ children, title }: { children: ReactNode; title: string }): ReactNode {
  const [asking, setAsking] = useState<"palette" | "help" | null>(null);
  const [menuOn, setMenuOn] = useState<string | null>(null); // the page it was opened on: another one closes it
  const { path } = usePlace();
  const menu = menuOn === path;
  const main = useRef<HTMLElement>(null);
  const was = useRef(path);
  usePageTitle(title);
  // Before it is painted: later, it would take the focus from whoever typed "/" at once.
  useLayoutEffect(() => {
    if (was.current !== path) main.current?.focus({ preventScroll: true }); // a reader is told of the new page
    was.current = path;
  }, [path]);
  useKeys({
    "mod+k": () => setAsking("palette"),
    "?": () => setAsking("help"),
    g: goFirst,
    "/": () => {
      const box = document.querySelector<HTMLInputElement>("input[type=search]");
      if (box) box.focus();
      else setAsking("palette");
    },
    ...Object.fromEntries(PAGES.flatMap((page) => (page.nav ? [[`g ${page.nav.key}`, () => go(page.path)]] : []))),
  });
  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to content
      </a>
      <header className="top">
        <button
          type="button"
          className="plain only-small"
          aria-label="Menu"
          aria-expanded={menu}
          onClick={() => setMenuOn(menu ? null : path)}
        >
          <Icon name="menu" size={20} />
        </button>
        <Link to="/" className="home">
          <Brand />
        </Link>
        <EnvironmentName />
        <button type="button" className="finder" onClick={() => setAsking("palette")}>
          <Icon name="search" />
          <span>Go to…</span>
          <kbd aria-hidden="true">Ctrl K</kbd>
        </button>
        <Who />
        <LiveControl />
      </header>
      <Nav open={menu} path={path} help={() => setAsking("help")} />
      <main id="main" ref={main} tabIndex={-1}>
        <Gone />
        <Suspense fallback={<Skeleton rows={6} />}>{children}</Suspense>
        <BulkBars />
      </main>
      {asking === "palette" && <Palette onClose={() => setAsking(null)} />}
      {asking === "help" && <Help onClose={() => setAsking(null)} />}
      <Toasts />
    </div>
  );
}

function Nav({ open, path, help }: { open: boolean; path: string; help: () => void }): ReactNode {
  const live = useLive();
  const [theme, setTheme] = useTheme();
  const notAdmin = useLack("admin") !== undefined;
  return (
    <nav className={open ? "side open" : "side"} aria-label="Pages">
      {GROUPS.map((group) => (
        <ul key={group}>
          {PAGES.map(({ nav, title, path: where }) => {
            if (nav?.group !== group || (nav.needs === "admin" && notAdmin)) return null;
            const here = where === "/" ? path === "/" : path === where || path.startsWith(`${where}/`);
            const count = nav.count?.(live);
            return (
              <li key={where}>
                <Link to={where} aria-current={here ? "page" : undefined}>
                  <Icon name={nav.icon} />
                  <span className="grow">{title}</span>
                  {!!count && <span className="count">{count}</span>}
                </Link>
              </li>
            );
          })}
        </ul>
      ))}
      <div className="side-foot">
        <div className="tabs" role="group" aria-label="Theme">
          {THEMES.map(([name, icon]) => (
            <button
              key={name}
              type="button"
              aria-pressed={theme === name}
              aria-label={`${name} theme`}
              title={`${name} theme`}
              onClick={() => setTheme(name)}
            >
              <Icon name={icon} size={14} />
            </button>
          ))}
        </div>
        <button type="button" className="plain" onClick={help} aria-label="Keys" title="Keys">
          <kbd>?</kbd>
        </button>
      </div>
    </nav>
  );
}

/** So that nobody takes one server for another. */
function EnvironmentName(): ReactNode {
  const { environment } = useLive();
  useEffect(() => {
    if (environment) document.documentElement.dataset.environment = environment.color;
  }, [environment]);
  return environment && <span className={`environment environment-${environment.color}`}>{environment.name}</span>;
}

/** Whose key this browser is logged in with. */
function Who(): ReactNode {
  const key = useMe()?.key;
  if (!key) return null;
  return (
    <Link to="/settings" className="button who" title={`Logged in as ${key.name}: ${key.scopes.join(", ")}`}>
      <Icon name="key" />
      <span className="who-name clip">{key.name}</span>
    </Link>
  );
}

const SAID = {
  live: "Live",
  connecting: "Connecting",
  paused: "Paused",
  gone: "Unreachable",
  refused: "Not live",
} as const;

function LiveControl(): ReactNode {
  const { status, now, restarted } = useLive();
  const before = useRef(restarted);
  useEffect(() => {
    if (now) setServerTime(now.at);
  }, [now]);
  useEffect(() => {
    if (restarted > before.current) say("The server was restarted; the page is up to date again");
    before.current = restarted;
  }, [restarted]);
  const paused = status === "paused";
  return (
    <button
      type="button"
      className={`live live-${status}`}
      onClick={() => setPaused(!paused)}
      aria-label={paused ? "Paused: resume live updates" : `${SAID[status]}: pause live updates`}
    >
      <span className="dot" />
      <span className="live-word">{SAID[status]}</span>
      <Icon name={paused ? "play" : "pause"} size={14} />
    </button>
  );
}

function Gone(): ReactNode {
  const { status, now } = useLive();
  const lack = useLack("read");
  if (status === "refused")
    return (
      <div className="notice tone-wait" role="status">
        <Icon name="warn" />
        <span>
          <strong>No live updates.</strong> {lack ?? "The server refused them"}. What you see is as it was when the view
          was opened.
        </span>
      </div>
    );
  if (status !== "gone") return null;
  return (
    <div className="banner" role="alert">
      <Icon name="warn" />
      <span>
        <strong>Server unreachable.</strong>{" "}
        {now ? `Showing data from ${clock(now.at)}; reconnecting…` : "Is it running? Reconnecting…"}
      </span>
    </div>
  );
}
