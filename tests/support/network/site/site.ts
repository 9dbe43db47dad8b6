import { Bystander } from "../bystander.ts";
import { debArchive } from "../deb-archive.ts";
import { type Certified, certify } from "./authority.ts";
import { GitServer } from "./git-server.ts";
import { type Answer, type NameServer, nameServer } from "./name-server.ts";
import { npmRegistry } from "./npm-registry.ts";
import { pythonIndex } from "./python-index.ts";
import { Peers } from "./site-peers.ts";
import { Web } from "./web.ts";

/** Names of the web server. */
export const WEB_NAMES = ["deb.test", "pypi.test", "npm.test", "git.test", "www.test", "other.test"] as const;

/**
 * Addresses of the site, none of which any interface has; see alone.sh. A connection to those of `silent` is never answered,
 * and there is no route to those of `unreachable`.
 */
export const ADDRESSES = {
  ...{ web: "20.0.0.80", web6: "2600:7::80", peers: "20.0.0.7" },
  ...{ silent: "20.0.8.1", unreachable: "20.0.9.1" },
} as const;

/** Answers of the name server; other names do not exist. No resolver may cache an answer. */
export class Names {
  readonly #answers = new Map<string, () => Answer>();

  set(name: string, ...addresses: readonly string[]): void {
    this.#answers.set(name, () => ({ addresses, ttl: 0 }));
  }

  /** @param answer returns a new answer to each query */
  setAnswer(name: string, answer: () => Answer): void {
    this.#answers.set(name, answer);
  }

  answer(name: string): Answer | null {
    return this.#answers.get(name)?.() ?? null;
  }
}

/** All that a guest can reach: servers on their own addresses, and their names. */
export class Site implements AsyncDisposable {
  readonly nameServer: NameServer;
  readonly names: Names;
  readonly web: Web;
  readonly peers: Peers;
  readonly bystander: Bystander;
  readonly certified: Certified;
  readonly #owned: AsyncDisposableStack;

  private constructor(
    parts: Pick<Site, "nameServer" | "names" | "web" | "peers" | "bystander" | "certified">,
    owned: AsyncDisposableStack,
  ) {
    this.nameServer = parts.nameServer;
    this.names = parts.names;
    this.web = parts.web;
    this.peers = parts.peers;
    this.bystander = parts.bystander;
    this.certified = parts.certified;
    this.#owned = owned;
  }

  /** @throws Error outside of a separate network namespace */
  static async start(): Promise<Site> {
    if (process.env["COPPICE_TEST_ALONE"] !== "1") {
      throw new Error("needs a network of its own: tests/support/network/alone.sh bun test ...");
    }
    await using stack = new AsyncDisposableStack();
    const names = new Names();
    const server = stack.use(await nameServer((name) => names.answer(name)));
    const certified = await certify(WEB_NAMES);
    const git = stack.use(await GitServer.start());
    const folders = { deb: await debArchive(), pypi: pythonIndex(), npm: npmRegistry("https://npm.test/npm/") };
    const addresses = [ADDRESSES.web, ADDRESSES.web6];
    const web = stack.use(new Web({ addresses, certified, folders, git }));
    const peers = stack.use(await Peers.start(ADDRESSES.peers));
    const bystander = stack.use(await Bystander.start());
    for (const name of WEB_NAMES) names.set(name, ADDRESSES.web);
    names.set("six.test", ADDRESSES.web6);
    names.set("peer.test", ADDRESSES.peers);
    names.set("silent.test", ADDRESSES.silent);
    names.set("unreachable.test", ADDRESSES.unreachable);
    return new Site({ nameServer: server, names, web, peers, bystander, certified }, stack.move());
  }

  /** Number of queries and connections: an idle guest adds none. */
  get contacts(): number {
    const accepted = Object.values(this.peers.accepted).reduce((sum, count) => sum + count, 0);
    return this.nameServer.asked.length + this.web.seen.length + accepted + this.bystander.seen.length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}
