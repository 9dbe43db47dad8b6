import { connection, noteAnswer, noteSilence } from "./connection.ts";
import { mayDo } from "./grants.ts";
import { Problem, problemOf } from "./problem.ts";
import { createStore, useStore } from "./store.ts";

/** The signed-in account, as `GET /web/session` reports it. */
export interface Session {
  readonly account: string;
  readonly scopes: readonly string[];
  /** sent with every request: browsers send the cookie alone to every port of a host */
  readonly csrf: string;
  /** when the token of the session expires, in the form of RFC 3339 */
  readonly token_expires_at: string;
  /** of the appliance */
  readonly version: string;
}

type SessionState =
  | { readonly is: "unknown" }
  /** `hasEnded`: this page had a session before */
  | { readonly is: "out"; readonly hasEnded: boolean }
  | { readonly is: "in"; readonly session: Session };

export const sessionState = createStore<SessionState>({ is: "unknown" });
/** True if the appliance was upgraded since it sent this page. */
export const isUpgraded = createStore(false);

const ADDRESS = "/web/session";
/** Storage key of the half of a session that is not the cookie; tabs share it. */
const KEPT_AT = "coppice.csrf";

/** Value of `x-csrf-token` in each request; empty when signed out. Another tab may have changed it. */
export function csrf(): string {
  return localStorage.getItem(KEPT_AT) ?? "";
}

const leaving = new Set<() => void>();

/** Calls `forget` when a session ends or another begins: loaded data may belong to another account. */
export function onSessionChange(forget: () => void): void {
  leaving.add(forget);
}

/**
 * Reads the session. If the appliance does not answer, it is asked again until it does.
 * @returns false when there was no answer
 */
export async function loadSession(): Promise<boolean> {
  // Without this half there is no session; while the appliance is away, the request also finds out whether it is back.
  if (csrf() === "" && connection.get() === "there") {
    endSession();
    return true;
  }
  const key = csrf();
  let response: Response;
  try {
    response = await fetch(ADDRESS, { cache: "no-store", headers: { "x-csrf-token": key } });
  } catch {
    // TypeError: nothing answers.
    noteSilence(loadSession);
    return false;
  }
  // A proxy answered in place of the appliance.
  if (response.status >= 500) {
    noteSilence(loadSession);
    return false;
  }
  if (response.ok) begin((await response.json()) as Session);
  // Another session may have begun meanwhile.
  else if (key === csrf()) endSession();
  if (connection.get() === "away") noteAnswer();
  return true;
}

/** Signs in by a token. @throws Problem */
export async function signIn(token: string): Promise<void> {
  // This ends the browser's previous session, which takes its key.
  const headers = { "content-type": "application/json", "x-csrf-token": csrf() };
  const response = await fetch(ADDRESS, { method: "POST", headers, body: JSON.stringify({ token }) }).catch(() => {
    throw new Problem("The appliance does not answer.", { code: "unreachable" });
  });
  if (!response.ok) throw await refusalOf(response);
  const session = (await response.json()) as Session;
  localStorage.setItem(KEPT_AT, session.csrf);
  begin(session);
}

/** Signs out, and ends the session at the appliance. @throws Problem if the appliance could not end it */
export async function signOut(): Promise<void> {
  const state = sessionState.get();
  if (state.is !== "in") return;
  const headers = { "x-csrf-token": csrf() };
  const response = await fetch(ADDRESS, { method: "DELETE", headers }).catch((error: unknown) => {
    throw new Problem("The appliance does not answer, so you are still signed in.", {
      code: "unreachable",
      cause: error,
    });
  });
  if (!response.ok && response.status !== 401) throw await refusalOf(response);
  localStorage.removeItem(KEPT_AT);
  for (const forget of leaving) forget();
  sessionState.set({ is: "out", hasEnded: false });
}

// Another tab signed in or out.
window.addEventListener("storage", ({ key }) => {
  if (key === KEPT_AT) void loadSession();
});

/** The session is over: the sign-in is shown at the same link. */
export function endSession(): void {
  const state = sessionState.get();
  if (state.is === "out") return;
  for (const forget of leaving) forget();
  sessionState.set({ is: "out", hasEnded: state.is === "in" });
}

function begin(session: Session): void {
  const state = sessionState.get();
  if (state.is === "in") {
    if (state.session.version !== session.version) isUpgraded.set(true);
    if (state.session.account !== session.account) for (const forget of leaving) forget();
    // Unchanged: nothing is redrawn.
    if (JSON.stringify(state.session) === JSON.stringify(session)) return;
  }
  sessionState.set({ is: "in", session });
}

/** The problem in an answer with an error status. */
export async function refusalOf(response: Response): Promise<Problem> {
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  const facts = { status: response.status, retryAfterSeconds: Number.isFinite(retryAfter) ? retryAfter : null };
  try {
    const { error, message, details } = (await response.json()) as {
      error?: string;
      message?: string;
      details?: Record<string, unknown>;
    };
    return new Problem(message ?? `HTTP status ${response.status}`, {
      ...facts,
      code: error ?? "no error object",
      details: details ?? {},
    });
  } catch (error) {
    // SyntaxError: a proxy sent the answer.
    return new Problem(`HTTP status ${response.status}`, {
      ...facts,
      code: "no error object",
      cause: problemOf(error),
    });
  }
}

export interface SignedIn extends Session {
  /** @param scope such as `images:delete` */
  may(scope: string): boolean;
  /** @throws Problem */
  signOut(): Promise<void>;
}

/** The present session. Views are drawn only while there is one. */
export function useSession(): SignedIn {
  const state = useStore(sessionState);
  const session = state.is === "in" ? state.session : SIGNED_OUT;
  return { ...session, may: (scope) => mayDo(session.scopes, scope), signOut };
}

const SIGNED_OUT: Session = { account: "", scopes: [], csrf: "", token_expires_at: "", version: "" };
