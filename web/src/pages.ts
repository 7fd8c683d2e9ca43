// Every page once: address, title, place in the navigation, key. A new page is a new entry here.
import { lazy } from "react";
import type { ComponentType } from "react";
import type { IconName } from "./components/icon";
import type { LiveView } from "./api/live";
import type { Scope } from "./api/me";
import { number } from "./lib/time";

export interface ViewProps {
  params: Record<string, string>;
}

interface Page {
  path: string;
  title: string;
  view: ComponentType<ViewProps>;
  load: () => Promise<unknown>;
  nav?: {
    icon: IconName;
    key: string;
    group: "watch" | "act" | "more";
    needs?: Scope; // left out for a key without it
    count?: (live: LiveView) => string | undefined;
  };
}

function view(load: () => Promise<{ default: ComponentType<ViewProps> }>): Pick<Page, "view" | "load"> {
  return { view: lazy(load), load };
}

/** `most`: the server counts no further. */
function counted(count = 0, most = Infinity): string | undefined {
  return count ? `${number(count)}${count < most ? "" : "+"}` : undefined;
}

export const PAGES: readonly Page[] = [
  {
    path: "/",
    title: "Overview",
    ...view(() => import("./views/Overview")),
    nav: { icon: "chart", key: "o", group: "watch" },
  },
  {
    path: "/tasks",
    title: "Tasks",
    ...view(() => import("./views/Tasks")),
    nav: { icon: "list", key: "t", group: "watch" },
  },
  { path: "/tasks/:id", title: "Task", ...view(() => import("./views/Task")) },
  {
    path: "/flows",
    title: "Flows",
    ...view(() => import("./views/Flows")),
    nav: { icon: "graph", key: "f", group: "watch" },
  },
  { path: "/flows/:flow", title: "Flow", ...view(() => import("./views/Flow")) },
  {
    path: "/runs",
    title: "Runs",
    ...view(() => import("./views/Runs")),
    nav: { icon: "play", key: "r", group: "watch" },
  },
  { path: "/runs/:id", title: "Run", ...view(() => import("./views/Run")) },
  {
    path: "/sessions",
    title: "Sessions",
    ...view(() => import("./views/Sessions")),
    nav: { icon: "people", key: "e", group: "watch" },
  },
  { path: "/sessions/:id", title: "Session", ...view(() => import("./views/Session")) },
  {
    path: "/workers",
    title: "Workers",
    ...view(() => import("./views/Workers")),
    nav: { icon: "cpu", key: "w", group: "watch" },
  },
  {
    path: "/queues",
    title: "Queues",
    ...view(() => import("./views/Queues")),
    nav: { icon: "layers", key: "q", group: "watch" },
  },
  { path: "/queues/:name", title: "Queue", ...view(() => import("./views/Queue")) },
  {
    path: "/limits",
    title: "Limits",
    ...view(() => import("./views/Limits")),
    nav: { icon: "gauge", key: "m", group: "watch" },
  },
  { path: "/limits/:name", title: "Limit", ...view(() => import("./views/Limit")) },
  { path: "/batches/:id", title: "Batch", ...view(() => import("./views/Batch")) },
  { path: "/workers/:id", title: "Worker", ...view(() => import("./views/Worker")) },
  { path: "/services/:name", title: "Service", ...view(() => import("./views/Service")) },
  {
    path: "/approvals",
    title: "Approvals",
    ...view(() => import("./views/Approvals")),
    nav: { icon: "hand", key: "a", group: "act", count: ({ now }) => counted(now?.approvals, 1_000) },
  },
  {
    path: "/dead-letters",
    title: "Dead letters",
    ...view(() => import("./views/DeadLetters")),
    nav: {
      icon: "skull",
      key: "d",
      group: "act",
      count: ({ now }) => counted(now?.states.dead),
    },
  },
  {
    path: "/operations",
    title: "Operations",
    ...view(() => import("./views/Operations")),
    nav: { icon: "check", key: "b", group: "act", count: ({ now }) => counted(now?.operations) },
  },
  {
    path: "/schedules",
    title: "Schedules",
    ...view(() => import("./views/Schedules")),
    nav: { icon: "calendar", key: "c", group: "act" },
  },
  { path: "/schedules/:name", title: "Schedule", ...view(() => import("./views/Schedule")) },
  {
    path: "/playground",
    title: "Playground",
    ...view(() => import("./views/Playground")),
    nav: { icon: "flask", key: "p", group: "more" },
  },
  {
    path: "/keys",
    title: "Keys",
    ...view(() => import("./views/Keys")),
    nav: { icon: "key", key: "k", group: "more", needs: "admin" },
  },
  {
    path: "/audit",
    title: "Audit log",
    ...view(() => import("./views/Audit")),
    nav: { icon: "book", key: "l", group: "more", needs: "admin" },
  },
  {
    path: "/settings",
    title: "Settings",
    ...view(() => import("./views/Settings")),
    nav: { icon: "gear", key: "s", group: "more" },
  },
];
