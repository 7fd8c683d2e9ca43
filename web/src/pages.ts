// Every page once: address, title, place in the navigation, key. A new page is a new entry here.
import { lazy } from "react";
import type { ComponentType } from "react";
import type { IconName } from "./components/icon";
import type { LiveView } from "./api/live";

export interface ViewProps {
  params: Record<string, string>;
}

interface Page {
  path: string;
  title: string;
  view: ComponentType<ViewProps>;
  nav?: {
    icon: IconName;
    key: string;
    group: "watch" | "act" | "more";
    count?: (live: LiveView, approvals: number) => number | undefined;
  };
}

export const PAGES: readonly Page[] = [
  {
    path: "/",
    title: "Overview",
    view: lazy(() => import("./views/Overview")),
    nav: { icon: "chart", key: "o", group: "watch" },
  },
  {
    path: "/tasks",
    title: "Tasks",
    view: lazy(() => import("./views/Tasks")),
    nav: { icon: "list", key: "t", group: "watch" },
  },
  { path: "/tasks/:id", title: "Task", view: lazy(() => import("./views/Task")) },
  {
    path: "/flows",
    title: "Flows",
    view: lazy(() => import("./views/Flows")),
    nav: { icon: "graph", key: "f", group: "watch" },
  },
  { path: "/flows/:flow", title: "Flow", view: lazy(() => import("./views/Flow")) },
  {
    path: "/runs",
    title: "Runs",
    view: lazy(() => import("./views/Runs")),
    nav: { icon: "play", key: "r", group: "watch" },
  },
  { path: "/runs/:id", title: "Run", view: lazy(() => import("./views/Run")) },
  {
    path: "/sessions",
    title: "Sessions",
    view: lazy(() => import("./views/Sessions")),
    nav: { icon: "people", key: "e", group: "watch" },
  },
  { path: "/sessions/:id", title: "Session", view: lazy(() => import("./views/Session")) },
  {
    path: "/workers",
    title: "Workers",
    view: lazy(() => import("./views/Workers")),
    nav: { icon: "cpu", key: "w", group: "watch" },
  },
  {
    path: "/queues",
    title: "Queues",
    view: lazy(() => import("./views/Queues")),
    nav: { icon: "layers", key: "q", group: "watch" },
  },
  {
    path: "/approvals",
    title: "Approvals",
    view: lazy(() => import("./views/Approvals")),
    nav: { icon: "hand", key: "a", group: "act", count: (_, approvals) => approvals },
  },
  {
    path: "/dead-letters",
    title: "Dead letters",
    view: lazy(() => import("./views/DeadLetters")),
    nav: { icon: "skull", key: "d", group: "act", count: (live) => live.now?.states.dead },
  },
  {
    path: "/schedules",
    title: "Schedules",
    view: lazy(() => import("./views/Schedules")),
    nav: { icon: "calendar", key: "c", group: "act" },
  },
  { path: "/schedules/:name", title: "Schedule", view: lazy(() => import("./views/Schedule")) },
  {
    path: "/playground",
    title: "Playground",
    view: lazy(() => import("./views/Playground")),
    nav: { icon: "flask", key: "p", group: "more" },
  },
  {
    path: "/settings",
    title: "Settings",
    view: lazy(() => import("./views/Settings")),
    nav: { icon: "gear", key: "s", group: "more" },
  },
];
