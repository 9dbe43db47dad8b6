/** How a call of the stand-in fails. */
export interface Failure {
  readonly endpoint: string;
  readonly how: "hang" | "500" | "die" | "exit" | "garbage" | "close" | "flood";
  /** only the first time; else always */
  readonly once?: boolean;
  /** number of calls of the endpoint that succeed before */
  readonly skip?: number;
}

/** The behaviour of a stand-in; the file control.json of its root. */
export interface Control {
  readonly failures?: readonly Failure[];
  /** false: memory cannot be restored on demand */
  readonly onDemand?: boolean;
  /** a guest's doings after an answered call; source `raw` writes the event as it is, `stderr` ends the VMM with it */
  readonly events?: readonly {
    readonly after: string;
    readonly source: string;
    readonly event: string;
    readonly properties?: Record<string, string>;
  }[];
  /** what the guest's console says before an event */
  readonly console?: string;
  /** calls that are refused are part of the test */
  readonly refusals?: boolean;
  readonly agentPort?: number;
}

/** A line of the transcript. */
export interface TranscriptLine {
  readonly call?: string;
  /** of the answer; 0 for a call that was made to fail */
  readonly status?: number;
  readonly body?: unknown;
  /** violations of the API by the client */
  readonly violation?: string;
}
