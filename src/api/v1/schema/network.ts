import { type Static, Type } from "@sinclair/typebox";
import {
  NETWORK_DEFAULTS,
  NETWORK_PORTS_COUNT_MAX,
  NETWORK_RULES_COUNT_MAX,
  NETWORK_TLS,
  NETWORK_VERDICTS,
} from "../../../domain/network.ts";
import { oneOf } from "../../wire-fields.ts";
import { Timestamp } from "./common.ts";

const PORT_MAX = 65_535;

const NetworkPorts = Type.Union(
  [
    Type.Literal("*"),
    Type.Array(Type.Integer({ minimum: 1, maximum: PORT_MAX, error: `must be an integer from 1 to ${PORT_MAX}` }), {
      minItems: 1,
      maxItems: NETWORK_PORTS_COUNT_MAX,
      error: `must have 1 to ${NETWORK_PORTS_COUNT_MAX} ports`,
    }),
  ],
  { description: "* for all", error: "must be * or an array of ports" },
);

/** A rule of a network as a caller writes it. */
export const NetworkRule = Type.Object({
  host: Type.String({
    description: "name; *.name for the names below it; * for all names with a dot; address; or range of addresses",
    examples: ["*.example.org"],
  }),
  ports: Type.Optional(NetworkPorts),
});

/** A network that is more than none. */
export const NetworkRequest = Type.Object({
  default: Type.Optional(
    oneOf(NETWORK_DEFAULTS, {
      default: "deny",
      description:
        "deny: nothing is permitted but the rules of allow; allow: all that the operator allows is permitted, except " +
        "connections to deny",
      error: "must be deny or allow",
    }),
  ),
  allow: Type.Optional(
    Type.Array(NetworkRule, {
      maxItems: NETWORK_RULES_COUNT_MAX,
      description: "rules, each of which the setting network.allow must cover; the default ports are 80 and 443",
      error: `must be an array of at most ${NETWORK_RULES_COUNT_MAX} rules`,
    }),
  ),
  deny: Type.Optional(
    Type.Array(
      Type.String({
        description: "address or range of addresses; names that have such an address are denied, too",
        examples: ["10.0.0.0/8"],
      }),
      {
        maxItems: NETWORK_RULES_COUNT_MAX,
        description: "only with the default allow; rules of allow make exceptions",
        error: `must be an array of at most ${NETWORK_RULES_COUNT_MAX} ranges of addresses`,
      },
    ),
  ),
  tls: Type.Optional(
    oneOf(NETWORK_TLS, {
      default: "sni",
      description:
        "sni: port 443 accepts only TLS with the name of the connection in its SNI; any: it accepts everything",
      error: "must be sni or any",
    }),
  ),
  record: Type.Optional(
    Type.Boolean({
      default: false,
      description: "allow what the operator allows, and return the rules that would have been enough",
      error: "must be a boolean",
    }),
  ),
});

export type NetworkFields = Static<typeof NetworkRequest>;

/** The network of a request. */
export const NetworkField = Type.Union([Type.Literal("none"), NetworkRequest], {
  default: "none",
  description: "what the sandbox may connect to",
  error: 'network must be "none" or an object with allow, default or record',
});

/** The network that a running instance has from now on. */
export const NetworkChangeField = Type.Union([Type.Literal("none"), NetworkRequest], {
  description:
    "what the sandbox may connect to from now on; open connections that it does not permit are reset. Needs the scope " +
    "instances:network",
  error: 'network must be "none" or an object with allow, default or record',
});

export const NetworkVerdict = oneOf(NETWORK_VERDICTS, {
  description:
    "allowed: connected, or given up by the sandbox meanwhile; denied: by the rules; denied_private: the address is not " +
    "public; denied_sni: no TLS, or TLS with another name; no_such_name; refused, unreachable, timed_out: by the host; " +
    "limited: by a limit of the operator",
});
const NetworkPort = Type.Union([Type.Integer(), Type.Null()], { description: "null: a question for the name" });
const NetworkHost = Type.String({ description: "the name or address that was asked for" });
const count = (description: string) => Type.Integer({ minimum: 0, description });

/** An entry of an audit. */
export const NetworkEntry = Type.Object({
  host: NetworkHost,
  port: NetworkPort,
  verdict: NetworkVerdict,
  connections: count("connections that were tried; without a port, questions for the name"),
  bytes_sent: count("bytes that the sandbox sent and the destination may have received"),
  bytes_received: count("bytes that the sandbox received"),
  first_at: Timestamp,
  last_at: Timestamp,
  addresses: Type.Array(Type.String(), {
    description: "addresses that were connected to, tried or refused, at most 8; behind the site's proxy, the proxy's",
  }),
});

const policyFields = {
  network: Type.Union([Type.Literal("none"), NetworkRequest]),
  rules_truncated: Type.Optional(
    Type.Boolean({ description: "present and true when rules are missing, because they were too many to keep" }),
  ),
};
const NetworkPolicy = Type.Object(policyFields);
const ResetCount = count("connections that were ended because the policy does not permit them");

/** A policy that an instance had for a time. */
const NetworkPeriod = Type.Object({ since: Timestamp, ...policyFields, connections_reset: ResetCount });

/** Audit of the network of an instance. */
export const NetworkAudit = Type.Object(
  {
    entries: Type.Array(NetworkEntry, { description: "one for each host, port and verdict" }),
    truncated: Type.Boolean({ description: "true: some connections or policies are missing" }),
    policy: Type.Optional(
      Type.Array(Type.Object({ host: Type.String(), ports: NetworkPorts }), {
        description: "of a recorded run: rules that allow what was connected to, for the allow of other requests",
      }),
    ),
    policies: Type.Optional(
      Type.Array(NetworkPeriod, {
        description: "when the network was changed: the first and the latest policies, in the order of time",
      }),
    ),
  },
  { description: "audit of the network of the instance; absent when it had no network" },
);
export type NetworkAudit = Static<typeof NetworkAudit>;

/** Data of the event for the first connection with a host, a port and a verdict. */
export const NetworkEventData = Type.Object(
  { host: NetworkHost, port: NetworkPort, verdict: NetworkVerdict },
  { description: "network: the first connection, or question for a name, with this outcome" },
);

/** Data of the event for a change of the network. */
export const NetworkPolicyEventData = Type.Object(
  { from: NetworkPolicy, to: NetworkPolicy, connections_reset: ResetCount },
  { description: "network_policy: the network was changed while the instance ran" },
);
