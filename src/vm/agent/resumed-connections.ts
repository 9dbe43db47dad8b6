import { type AgentConnection, DialledConnection, GuestOpenedConnection } from "./connection.ts";
import type { AgentLink } from "./link.ts";
import type { AgentRecord } from "./record.ts";

/** Continues with the connections of a record, and with the requests for others. Returns those that are open. */
export function resumeConnections(link: AgentLink, { connections, queries }: AgentRecord): AgentConnection[] {
  const open: AgentConnection[] = [];
  const requested: GuestOpenedConnection[] = [];
  for (const from of connections) {
    const { destination } = from;
    const connection =
      destination === null ? new DialledConnection(link, from) : new GuestOpenedConnection(link, destination, from);
    link.admit(from.session, connection);
    if (from.isOpen) open.push(connection);
    else if (connection instanceof GuestOpenedConnection) requested.push(connection);
    // The caller that dialled has left with the earlier object.
    else void connection.opened.then(() => connection.reset()).catch(() => undefined);
  }
  link.requests.resume(requested, queries);
  return open;
}
