// What this browser remembers of its user: the theme, and the name that goes with approvals and pauses.
import { watched } from "./watched";

export type Theme = "system" | "light" | "dark";

const { tell, use } = watched();
const unkept = new Map<string, string>(); // for a browser that keeps nothing

function read(key: string): string {
  try {
    return localStorage.getItem(key) ?? "";
  } catch {
    return unkept.get(key) ?? "";
  }
}

function keep(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    unkept.set(key, value);
  }
  tell();
}

function useKept(key: string): string {
  return use(() => read(key));
}

export function useTheme(): [Theme, (theme: Theme) => void] {
  const found = useKept("onward.theme");
  return [
    found === "light" || found === "dark" ? found : "system",
    (chosen) => {
      if (chosen === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = chosen;
      keep("onward.theme", chosen);
    },
  ];
}

export function useIdentity(): [string, (name: string) => void] {
  return [useKept("onward.by"), (name) => keep("onward.by", name)];
}
