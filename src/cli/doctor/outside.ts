import type { Config } from "../../config/config.ts";
import { readProxyCredentials } from "../../config/network.ts";
import { nameServerAnswers, proxyFault } from "../../network/gate/probe.ts";
import { HostNetwork } from "../../network/host-network.ts";
import type { Finding } from "./finding.ts";

type Settings = Pick<Config["network"], "resolvers" | "proxy" | "proxyCredentialsFile">;

/** Whether the name servers and the site's proxy answer, by which imports and the networks of sandboxes connect. */
export async function outsideFindings(settings: Settings, host = new HostNetwork()): Promise<Finding[]> {
  const servers = settings.resolvers.length > 0 ? settings.resolvers : host.servers;
  return await Promise.all([
    nameServersFinding(servers),
    ...(settings.proxy === null ? [] : [proxyFinding({ ...settings, proxy: settings.proxy }, host, servers)]),
  ]);
}

async function nameServersFinding(servers: readonly string[]): Promise<Finding> {
  const answers = await Promise.all(servers.map(nameServerAnswers));
  const silent = servers.filter((_, index) => answers[index] === false);
  const base = { name: "name servers", fix: null };
  if (silent.length === 0) {
    const summary = `${servers.join(", ")} ${servers.length === 1 ? "answers" : "answer"}`;
    return {
      ...base,
      state: "ok",
      summary,
      meaning: "they give the addresses of registries and of what sandboxes reach",
    };
  }
  const summary = `${silent.join(", ")} ${silent.length === 1 ? "does" : "do"} not answer`;
  const meaning =
    silent.length < servers.length
      ? "names take longer to resolve; network.resolvers chooses other servers"
      : "imports and sandboxes reach nothing by a name; network.resolvers chooses other servers";
  return { ...base, state: "note", summary, meaning };
}

async function proxyFinding(
  { proxy, proxyCredentialsFile: file }: Settings & { readonly proxy: NonNullable<Settings["proxy"]> },
  host: HostNetwork,
  servers: readonly string[],
): Promise<Finding> {
  const shown = `${proxy.host} port ${proxy.port}`;
  const base = { name: "proxy", meaning: "imports and sandboxes connect through network.proxy", fix: null };
  try {
    const credentials = file === null ? null : readProxyCredentials(file);
    const fault = await proxyFault({ ...proxy, credentials }, host, servers);
    if (fault === null) return { ...base, state: "ok", summary: `${shown} answers` };
    return { ...base, state: "problem", summary: `${shown}: ${fault}` };
  } catch (error) {
    return { ...base, state: "problem", summary: (error as Error).message };
  }
}
