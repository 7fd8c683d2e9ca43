// The title of the tab. A view that shows one thing names it, so that ten open tabs can be told apart.
import { useEffect } from "react";

let page = "";
let thing = "";

function show(): void {
  document.title = `${thing || page} · Onward`;
}

export function usePageTitle(name: string): void {
  useEffect(() => {
    page = name;
    show();
  }, [name]);
}

export function useTitle(name: string): void {
  useEffect(() => {
    thing = name;
    show();
    return () => {
      thing = "";
      show();
    };
  }, [name]);
}
