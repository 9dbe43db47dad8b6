import { lineageStates, lineageSteps } from "../../db/images/history.ts";
import { type ImageRow, imageDefaults } from "../../db/images/images.ts";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import { type ImageId, isoTime } from "../../domain/ids.ts";
import { type Envelope, IN_TOTO_TYPE } from "../../domain/receipts/envelope.ts";
import {
  BUILD_TYPE,
  NOT_PROVEN,
  PREDICATE_TYPE,
  type Resource,
  STATEMENT_TYPE,
  type Statement,
} from "../../domain/receipts/statement.ts";
import { type Descriptor, describeLayer, describeManifest, MANIFEST_TYPE } from "../../storage/archive/oci-archive.ts";
import { Pacer } from "../../storage/pacer.ts";
import { ReceiptKey } from "../../storage/receipts/receipt-key.ts";
import { readerOf, requireImage } from "../inspection/layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { digestSet, ReceiptSteps, type StepParts } from "./receipt-steps.ts";

/** Most steps of an image that can have a receipt. */
const STEPS_COUNT_MAX = 2000;
/** Steps that are read in one turn of the event loop. */
const PAGE_COUNT = 20;
/** Descriptors of layers that are kept: a layer never changes, and the next image has almost the same ones. */
const DESCRIPTORS_COUNT_MAX = 10_000;

export interface ReceiptRequest {
  readonly id: ImageId;
  readonly signal: AbortSignal;
}

/** The public key of the appliance's receipts. */
export interface PublicKey {
  readonly id: string;
  readonly pem: string;
}

/** Makes receipts, and keeps the digests of layers for the next ones. */
export class Receipts {
  readonly #parts: ServiceParts;
  readonly #key: ReceiptKey;
  /** by the path of the layer's index, the last used one last */
  readonly #descriptors = new Map<string, Descriptor>();

  constructor(parts: ServiceParts) {
    this.#parts = parts;
    this.#key = new ReceiptKey(parts.layout.keys);
  }

  key(): Promise<PublicKey> {
    return this.#key.read();
  }

  /** @throws as `BranchUseCases.receipt` says */
  async make(principal: Principal, { id, signal }: ReceiptRequest): Promise<Envelope> {
    requireImage(this.#parts, principal, id);
    using _walk = await this.#parts.accounts.wait(principal.accountId, "walks", { signal });
    // The image may have been deleted during the wait: look it up again.
    const image = requireImage(this.#parts, principal, id);
    const layers = await this.#layers(principal, image, signal);
    const steps = await this.#steps(principal, image, signal);
    const statement = this.#statement(image, { layers, steps, keyId: (await this.#key.read()).id });
    return await this.#key.sign(IN_TOTO_TYPE, Buffer.from(JSON.stringify(statement)));
  }

  /** The descriptors of the image's layers in an archive, lowest first. */
  async #layers(principal: Principal, { layerId }: ImageRow, signal: AbortSignal): Promise<readonly Descriptor[]> {
    using held = this.#parts.layers.open(layerId);
    const descriptors: Descriptor[] = [];
    for (const files of held.files) {
      const cancellation = readerOf(principal.accountId, signal);
      const stored = this.#descriptors.get(files.index);
      const descriptor = stored ?? (await describeLayer(files, cancellation, held.openLayers));
      this.#descriptors.delete(files.index);
      this.#descriptors.set(files.index, descriptor);
      descriptors.push(descriptor);
    }
    for (const oldest of this.#descriptors.keys()) {
      if (this.#descriptors.size <= DESCRIPTORS_COUNT_MAX) break;
      this.#descriptors.delete(oldest);
    }
    return descriptors;
  }

  /** The steps of the lineage, the import first. */
  async #steps(principal: Principal, { id }: ImageRow, signal: AbortSignal): Promise<readonly StepParts[]> {
    const { db } = this.#parts;
    const rows = lineageStates(db, principal.accountId, id, STEPS_COUNT_MAX + 1);
    if (rows.length > STEPS_COUNT_MAX) {
      throw new ApiError("conflict", `only an image of at most ${STEPS_COUNT_MAX} steps has a receipt`, { uuid: id });
    }
    const pacer = new Pacer(readerOf(principal.accountId, signal));
    const reader = new ReceiptSteps(this.#parts, principal);
    const steps: StepParts[] = [];
    for (let first = 0; first < rows.length; first += PAGE_COUNT) {
      await pacer.yield();
      const ids = rows.slice(first, first + PAGE_COUNT).map(({ imageId }) => imageId);
      for (const row of lineageSteps(db, ids)) steps.push(reader.read(row, rows.length - 1 - steps.length));
    }
    return steps.reverse();
  }

  #statement(
    image: ImageRow,
    {
      layers,
      steps,
      keyId,
    }: { readonly layers: readonly Descriptor[]; readonly steps: readonly StepParts[]; readonly keyId: string },
  ): Statement {
    const createdAt = isoTime(image.createdAt);
    const manifest = describeManifest({ createdAt, defaults: imageDefaults(this.#parts.db, image.id) }, layers);
    const subject: Resource = {
      name: image.id,
      uri: `urn:uuid:${image.id}`,
      digest: digestSet(manifest.digest),
      mediaType: MANIFEST_TYPE,
      ...(image.tag === null ? {} : { annotations: { tag: image.tag } }),
    };
    const outcomes = steps.map(({ step, outcome }) => ({
      name: `step ${step.step}`,
      uri: `urn:uuid:${step.operation}`,
      annotations: { ...outcome },
    }));
    const last = steps.at(-1)?.step.operation;
    return {
      _type: STATEMENT_TYPE,
      subject: [subject],
      predicateType: PREDICATE_TYPE,
      predicate: {
        buildDefinition: {
          buildType: BUILD_TYPE,
          externalParameters: { steps: steps.map(({ step }) => step) },
          internalParameters: { notProven: NOT_PROVEN },
          resolvedDependencies: steps.flatMap(({ dependencies }) => dependencies),
        },
        runDetails: {
          builder: {
            id: `urn:coppice:appliance:${keyId}`,
            version: { coppice: this.#parts.version },
          },
          metadata: {
            invocationId: `urn:uuid:${last ?? image.id}`,
            ...given({ startedOn: steps[0]?.outcome.startedOn }),
            finishedOn: createdAt,
          },
          byproducts: [...layers.map(layerResource), ...outcomes],
        },
      },
    };
  }
}

function layerResource({ digest, mediaType, size }: Descriptor, at: number): Resource {
  return { name: `layer ${at}`, digest: digestSet(digest), mediaType, annotations: { sizeBytes: size } };
}
