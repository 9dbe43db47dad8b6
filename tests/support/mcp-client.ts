import { Client, StreamableHTTPClientTransport, type Transport } from "@modelcontextprotocol/client";

/** The protocols that clients speak: with a handshake (2025), and without (2026). */
export const ERAS = ["legacy", "auto"] as const;
export type Era = (typeof ERAS)[number];

/** A result of a tool, as tests read it. */
export interface ToolAnswer {
  /** all its texts, one item after the other */
  readonly text: string;
  readonly items: readonly { readonly type: string; readonly text?: string; readonly uri?: string }[];
  readonly isError: boolean;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
  readonly structured: any;
  /** facts about the operation, for programs */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
  readonly operation: any;
}

export interface CallOptions {
  readonly signal?: AbortSignal;
  readonly timeout?: number;
  readonly onprogress?: (progress: { readonly message?: string | undefined }) => void;
}

/** A client of the protocol, with the official library. */
export class McpClient implements AsyncDisposable {
  readonly client: Client;

  private constructor(client: Client) {
    this.client = client;
  }

  static async over(transport: Transport, era: Era = "legacy"): Promise<McpClient> {
    const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode: era } });
    await client.connect(transport);
    return new McpClient(client);
  }

  static async open(url: string, token: string, era: Era = "legacy"): Promise<McpClient> {
    const requestInit = { headers: { authorization: `Bearer ${token}` } };
    return await McpClient.over(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit }), era);
  }

  async call(name: string, input: Record<string, unknown> = {}, options: CallOptions = {}): Promise<ToolAnswer> {
    const answer = await this.client.callTool({ name, arguments: input }, options);
    const items = answer.content as ToolAnswer["items"];
    return {
      text: items.flatMap(({ text }) => text ?? []).join("\n"),
      items,
      isError: answer.isError === true,
      structured: answer.structuredContent ?? null,
      operation: answer._meta?.["coppice/operation"] ?? null,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client.close();
  }
}
