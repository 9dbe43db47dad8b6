import type { Config } from "../../config/config.ts";
import { readProxyCredentials } from "../../config/network.ts";
import { nameServerAnswers, proxyFault } from "../../network/gate/probe.ts";
import { HostNetwork } from "../../network/host-network.ts";
import type { Outside } from "../../supervisor/health/outside.ts";

/** Resolves and connects in this process: it holds no keys, and ends after that. */
export function directOutside(
  {
    resolvers,
    proxy,
    proxyCredentialsFile: file,
  }: Pick<Config["network"], "resolvers" | "proxy" | "proxyCredentialsFile">,
  host = new HostNetwork(),
): Outside {
  const servers = resolvers.length > 0 ? resolvers : host.servers;
  return {
    servers,
    nameServerAnswers,
    proxy,
    async proxyFault() {
      if (proxy === null) return null;
      const credentials = file === null ? null : readProxyCredentials(file);
      const lookup = { host: proxy.host, servers, hostsFile: host.addressesOf(proxy.host) };
      return await proxyFault({ ...proxy, credentials, lookup });
    },
  };
}
