// Who this browser is: the key that it is logged in with, and what that key may do. Without keys everybody may everything.
import { useQuery } from "@tanstack/react-query";
import { useIdentity } from "../lib/kept";
import { get, post } from "./client";
import { queries, seldom } from "./data";
import type { Me } from "./types";

export type Scope = "submit" | "read" | "reveal" | "operate" | "approve" | "admin";

export function useMe(): Me | undefined {
  const me = useQuery({
    queryKey: ["/api/v2/me"],
    queryFn: ({ signal }) => get<Me>("/api/v2/me", signal, { masked: false }),
    meta: { concerns: seldom },
  });
  return me.data;
}

/** Why this key may not do it; undefined: it may. With its own work a key may do more than with others'. */
export function useLack(scope: Scope, owner: string | null = null): string | undefined {
  const key = useMe()?.key;
  if (!key || key.id === owner || key.scopes.includes(scope) || key.scopes.includes("admin")) return undefined;
  return `Your key ${key.name} does not have the scope ${scope}`;
}

/** The name that is recorded with what is done: the key's, or the one that a person entered. */
export function useName(): { name: string; setName: ((name: string) => void) | null } {
  const [name, setName] = useIdentity();
  const key = useMe()?.key;
  return key ? { name: key.name, setName: null } : { name, setName };
}

export async function logIn(token: string): Promise<void> {
  await post<Me>("/api/v2/login", { token });
  await queries.resetQueries(); // what was read as somebody else
}

export async function logOut(): Promise<void> {
  await post("/api/v2/logout");
  queries.clear();
}
