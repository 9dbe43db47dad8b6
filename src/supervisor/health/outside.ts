import type { Finding } from "./finding.ts";

/** The name servers and the proxy by which imports and the networks of sandboxes connect, and a way to ask them. */
export interface Outside {
  /** name servers, in the form of `setServers` of node:dns */
  readonly servers: readonly string[];
  /** Whether a name server gives any answer. @throws Error when it cannot be asked */
  nameServerAnswers(server: string): Promise<boolean>;
  /** null when this host reaches the outside by itself */
  readonly proxy: { readonly host: string; readonly port: number } | null;
  /** The fault of the proxy; null when it accepts requests. @throws Error when it cannot be asked */
  proxyFault(): Promise<string | null>;
}

/** Whether the name servers and the site's proxy answer. */
export async function outsideFindings(outside: Outside): Promise<Finding[]> {
  const { proxy } = outside;
  return await Promise.all([
    nameServersFinding(outside),
    ...(proxy === null ? [] : [proxyFinding(`${proxy.host} port ${proxy.port}`, outside)]),
  ]);
}

async function nameServersFinding(outside: Outside): Promise<Finding> {
  const { servers } = outside;
  const base = { name: "name servers", fix: null };
  let answers: readonly boolean[];
  try {
    answers = await Promise.all(servers.map((server) => outside.nameServerAnswers(server)));
  } catch (error) {
    return { ...base, state: "note", summary: (error as Error).message, meaning: "the name servers were not asked" };
  }
  const silent = servers.filter((_, index) => answers[index] === false);
  if (silent.length === 0) {
    const summary = `${servers.join(", ")} ${servers.length === 1 ? "answers" : "answer"}`;
    return {
      ...base,
      state: "ok",
      summary,
      meaning: "they resolve the names of registries and of hosts that sandboxes reach",
    };
  }
  const summary = `${silent.join(", ")} ${silent.length === 1 ? "does" : "do"} not answer`;
  const meaning =
    silent.length < servers.length
      ? "names take longer to resolve; network.resolvers chooses other servers"
      : "imports and sandboxes reach nothing by a name; network.resolvers chooses other servers";
  return { ...base, state: "note", summary, meaning };
}

async function proxyFinding(address: string, outside: Outside): Promise<Finding> {
  const base = { name: "proxy", meaning: "imports and sandboxes connect through network.proxy", fix: null };
  try {
    const fault = await outside.proxyFault();
    if (fault === null) return { ...base, state: "ok", summary: `${address} answers` };
    return { ...base, state: "problem", summary: `${address}: ${fault}` };
  } catch (error) {
    return { ...base, state: "problem", summary: (error as Error).message };
  }
}
