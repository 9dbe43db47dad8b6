import type { Config } from "../../config/config.ts";
import { runningFinding } from "../../supervisor/health/checks.ts";
import type { Finding } from "../../supervisor/health/finding.ts";

const HEALTH_TIMEOUT_MS = 10_000;

/** Whether an appliance answers where the configuration lets it listen. */
export async function applianceFinding({ listen }: Pick<Config, "listen">): Promise<Finding> {
  const scheme = listen.tlsCert === null ? "http" : "https";
  const url = `${scheme}://${listen.host}:${listen.port}`;
  const base = { name: "appliance", meaning: "start it with: coppice serve", fix: null };
  const signal = AbortSignal.timeout(HEALTH_TIMEOUT_MS);
  try {
    // The certificate is for the public name of the appliance, not for the address that it listens at.
    const response = await fetch(`${url}/readyz`, { signal, tls: { rejectUnauthorized: false } });
    const readiness = readinessOf(await response.text());
    if (readiness === null) {
      const meaning = "the appliance is configured to listen at this address";
      return { ...base, state: "note", summary: `another program answers at ${url}`, meaning };
    }
    return runningFinding(readiness, `running at ${url}`);
  } catch (error) {
    const { code, name } = error as NodeJS.ErrnoException;
    const refused = code === "ConnectionRefused" || code === "ECONNREFUSED";
    return { ...base, state: "note", summary: `not running at ${url}${refused ? "" : ` (${code ?? name})`}` };
  }
}

/** The readiness in an answer; null if the answer is not one of an appliance. */
function readinessOf(text: string): { readonly ready: boolean; readonly reason: string } | null {
  try {
    const { ready, reason } = JSON.parse(text) as { ready?: unknown; reason?: unknown };
    return typeof ready === "boolean" && typeof reason === "string" ? { ready, reason } : null;
  } catch (error) {
    // SyntaxError: another server answered.
    if (!(error instanceof SyntaxError)) throw error;
    return null;
  }
}
