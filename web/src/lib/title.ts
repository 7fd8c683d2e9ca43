// The title and the icon of the tab. A view that shows one thing names it and its state, so that ten open tabs can be told apart.
import { useEffect } from "react";
import type { Tone } from "../words";

let page = "";
let thing = "";

/** The icons in public/, each a colour and a sign. */
const ICONS: Partial<Record<Tone, string>> = {
  good: "good",
  bad: "bad",
  dead: "bad",
  busy: "busy",
  idle: "wait",
  wait: "wait",
  later: "wait",
};

function show(tone?: Tone): void {
  document.title = `${thing || page} · Onward`;
  const icon = tone && ICONS[tone];
  const link = document.querySelector<HTMLLinkElement>("link[rel=icon]");
  if (link) link.href = `/ui/favicon${icon ? `-${icon}` : ""}.svg`;
}

export function usePageTitle(name: string): void {
  useEffect(() => {
    page = name;
    show();
  }, [name]);
}

export function useTitle(name: string, tone?: Tone): void {
  useEffect(() => {
    thing = name;
    show(tone);
    return () => {
      thing = "";
      show();
    };
  }, [name, tone]);
}
