import type { NetworkInput } from "../network.ts";
import type { Isolation, OperationKind } from "../operation.ts";

/** Type of a statement of in-toto (attestation/spec/v1/statement.md). */
export const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
/** Type of a predicate of SLSA provenance (slsa.dev/provenance/v1). */
export const PREDICATE_TYPE = "https://slsa.dev/provenance/v1";
/** The kind of build: docs/receipts.md describes its parameters. */
export const BUILD_TYPE = "urn:coppice:lineage:v1";

/** An artifact, with the field names of in-toto's ResourceDescriptor. */
export interface Resource {
  readonly name?: string;
  readonly uri?: string;
  /** in hexadecimal, by algorithm */
  readonly digest?: Readonly<Record<string, string>>;
  readonly mediaType?: string;
  readonly annotations?: Readonly<Record<string, unknown>>;
}

/** How a step of the lineage was asked for. Values of variables and standard input are not kept, so they are not in it. */
export interface ReceiptStep {
  /** number of the step; the import is 0 */
  readonly step: number;
  readonly kind: OperationKind | "derived";
  readonly operation: string;
  /** uuid of the image that the step made */
  readonly image: string;
  /** reference of an import */
  readonly source?: string;
  readonly command?: readonly string[];
  /** true: the last arguments are left out, or cut */
  readonly commandTruncated?: true;
  readonly request?: ReceiptRequest;
}

/** The request of a step, as far as the appliance has kept it. */
export interface ReceiptRequest {
  readonly workingDirectory?: string;
  readonly uid?: number;
  readonly gid?: number;
  readonly hostname?: string;
  /** names of the variables that the request set; their values are secret */
  readonly environmentNames?: readonly string[];
  readonly standardInputBytes?: number;
  readonly timeoutSeconds?: number;
  readonly resources?: { readonly vcpus: number; readonly memoryBytes: number; readonly diskBytes: number };
  readonly network?: NetworkInput;
  /** the instance of which a checkpoint is */
  readonly instance?: string;
  /** true: the request was too long to be kept whole */
  readonly truncated?: true;
}

/** The outcome of a step, as the appliance has recorded it. */
export interface ReceiptOutcome {
  readonly step: number;
  readonly exitCode?: number;
  readonly timedOut?: true;
  readonly outOfMemory?: true;
  /** ISO 8601 */
  readonly startedOn?: string;
  /** ISO 8601 */
  readonly finishedOn: string;
  readonly isolation?: Isolation;
  /** the hosts that were reached; "none": it had no network; "not recorded": it had one, whose record is not kept */
  readonly network?: ReceiptNetwork | "none" | "not recorded";
  /** false: the record of the operation has expired, so that only the lineage is known */
  readonly isRecorded: boolean;
  /** true: details are left out, because the receipt would be too long */
  readonly detailsOmitted?: true;
}

/** The hosts that a step has reached. */
export interface ReceiptNetwork {
  readonly reached: readonly {
    readonly host: string;
    readonly port: number;
    readonly addresses: readonly string[];
    readonly connections: number;
    readonly bytesSent: number;
    readonly bytesReceived: number;
  }[];
  /** true: there may have been more */
  readonly truncated?: true;
}

/** A statement of in-toto with SLSA provenance, with their field names. */
export interface Statement {
  readonly _type: typeof STATEMENT_TYPE;
  readonly subject: readonly Resource[];
  readonly predicateType: typeof PREDICATE_TYPE;
  readonly predicate: {
    readonly buildDefinition: {
      readonly buildType: string;
      readonly externalParameters: { readonly steps: readonly ReceiptStep[] };
      readonly internalParameters: { readonly notProven: readonly string[] };
      readonly resolvedDependencies: readonly Resource[];
    };
    readonly runDetails: {
      readonly builder: { readonly id: string; readonly version: Readonly<Record<string, string>> };
      readonly metadata: { readonly invocationId: string; readonly startedOn?: string; readonly finishedOn: string };
      readonly byproducts: readonly Resource[];
    };
  };
}

/** The limits of what a receipt proves. They are part of it. */
export const NOT_PROVEN: readonly string[] = [
  "The operator of the host can change the images and records of the appliance, and sign with its key.",
  "A command is known by its arguments. What the program did is not: it may have done something else than its name says.",
  "Values of environment variables and standard input are not recorded, so a step cannot be repeated from the receipt alone.",
  "Further processes of an instance or a sandbox, and files that were written in it from outside, are not listed.",
  "Bytes that came over the network are not recorded, only from which hosts, and how many.",
  "An import is known by the digest of its manifest. How that image was made is not.",
  "Without a hardware-supported virtual machine (isolation vm-emulated), a step is not isolated by a security boundary.",
  "A step that is not recorded is known only by the lineage of the image, without its isolation and network.",
  "The version is that of the appliance which signed the receipt. Steps may have run with an earlier one.",
  "Times are those of the clock of the host.",
];
