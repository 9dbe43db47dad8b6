import { useState } from "preact/hooks";
import type { Collection } from "../../client/types.ts";
import { request } from "../data/api.ts";
import { useResource } from "../data/resource.ts";
import { Button } from "../parts/button.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { useToast } from "../parts/toast.tsx";
import { bytesText, countOf, durationText } from "../text/format.ts";
import { Section } from "./section.tsx";

const PATH = "/v1/operator/collection";

/** Both take as long as the disk needs, which has no limit that the typed client would know. */
async function collection(method: "GET" | "POST", signal?: AbortSignal): Promise<Collection> {
  return (await (await request(PATH, { method, ...(signal === undefined ? {} : { signal }) })).json()) as Collection;
}

/** The space that a collection would free, and a button that starts one. */
export function CollectionSection({ onCollected }: { readonly onCollected: () => void }) {
  const preview = useResource("appliance-collection", (signal) => collection("GET", signal));
  const [isAsking, setAsking] = useState(false);
  const toast = useToast();
  const { value, problem, reload } = preview;
  const collect = async () => {
    const freed = await collection("POST");
    toast(`The collector gave back ${bytesText(freed.bytes)}: ${partsOf(freed)}.`);
    reload();
    onCollected();
  };
  return (
    <Section
      heading="Collector"
      actions={
        value === undefined || isNothing(value) ? undefined : (
          <Button isSmall onClick={() => setAsking(true)}>
            Collect now…
          </Button>
        )
      }
    >
      {problem === undefined ? null : (
        <ProblemNote title="The collector could not be asked" problem={problem} onRetry={reload} />
      )}
      {value === undefined && problem === undefined ? <Skeleton lines={2} label="Loading the collector" /> : null}
      {value === undefined ? null : (
        <>
          <p>
            {isNothing(value) ? (
              "There is nothing to free now."
            ) : (
              <>
                A collection would free <strong class="number">{bytesText(value.bytes)}</strong>: {partsOf(value)}.
              </>
            )}
          </p>
          <p class="muted">{policyOf(value)}</p>
        </>
      )}
      {isAsking && value !== undefined ? (
        <Confirm title="Collect now?" action="Collect" isDangerous onConfirm={collect} onClose={() => setAsking(false)}>
          <p>
            This removes {partsOf(value)}, and frees about {bytesText(value.bytes)}. Removed images and files cannot be
            restored.
          </p>
        </Confirm>
      ) : null}
    </Section>
  );
}

function isNothing({ images, layers, files, memory_images, bytes }: Collection): boolean {
  return images + layers + files + memory_images + bytes === 0;
}

function partsOf(collection: Collection): string {
  const { images, layers, layer_bytes, files, file_bytes, memory_images, memory_image_bytes } = collection;
  const parts = [
    ...(images === 0 ? [] : [countOf(images, "expired image")]),
    ...(layers === 0 ? [] : [`${countOf(layers, "layer")} (${bytesText(layer_bytes)})`]),
    ...(files === 0 ? [] : [`${countOf(files, "file")} (${bytesText(file_bytes)})`]),
    ...(memory_images === 0
      ? []
      : [
          `the memory of ${countOf(memory_images, "paused sandbox", "paused sandboxes")} (${bytesText(memory_image_bytes)})`,
        ]),
  ];
  return parts.length === 0 ? "nothing" : parts.join(", ");
}

function policyOf({ images_untagged_ttl: images, files_ttl: files }: Collection): string {
  const age = (seconds: number) => durationText(seconds * 1000);
  return [
    "The collector runs by itself once an hour.",
    images === undefined
      ? "Images without a tag never expire (images.untagged_ttl)."
      : `Images without a tag expire after ${age(images)} without use (images.untagged_ttl).`,
    files === undefined
      ? "Uploaded files never expire (files.ttl)."
      : `Uploaded files expire after ${age(files)} without use (files.ttl).`,
  ].join(" ");
}
