import { useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import type { ImageDeletion } from "../../client/types.ts";
import { isTag, TAG_RULE } from "../../domain/image.ts";
import { api } from "../data/api.ts";
import { useResource } from "../data/resource.ts";
import { Confirm } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Bytes } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { useToast } from "../parts/toast.tsx";
import { countOf } from "../text/format.ts";
import type { Forest, ImageNode } from "./model/forest.ts";
import { nameOf } from "./model/text.ts";

interface DialogProps {
  readonly image: ImageNode;
  readonly onClose: () => void;
}

/** Sets, changes or removes the tag of an image. */
export function TagDialog({ image, forest, onClose }: DialogProps & { readonly forest: Forest }) {
  const [tag, setTag] = useState(image.tag ?? "");
  const toast = useToast();
  const last = forest.tagged(tag);
  const isWrong = tag !== "" && !isTag(tag);
  const change = async () => {
    const route = api.v1.images({ uuid: image.id }).tag;
    if (tag === "") await answerOf(route.delete());
    else await answerOf(route.patch({ tag }));
    toast(tag === "" ? "Tag removed" : `Tagged ${tag}`);
  };
  return (
    <Confirm
      title={image.tag === null ? "Tag this image" : "Change the tag"}
      action={tag === "" && image.tag !== null ? "Remove the tag" : "Tag"}
      isReady={!isWrong && tag !== (image.tag ?? "")}
      onConfirm={change}
      onClose={onClose}
    >
      <Field
        label="Tag"
        value={tag}
        onValue={setTag}
        isMono
        problem={isWrong ? `A tag ${TAG_RULE}.` : undefined}
        hint={image.tag === null ? "Unique in this account." : "Empty: the image has no tag."}
      />
      {last === null || last === image ? null : (
        <p class="branches-note">
          The image <GuestText text={last.id} isMono /> has this tag now, and loses it.
        </p>
      )}
    </Confirm>
  );
}

/** Deletes an image, after a summary of the freed space and the images made from it. */
export function DeleteDialog({ image, onClose }: DialogProps) {
  const toast = useToast();
  const { value, problem, reload } = useResource(`deletion ${image.id}`, (signal) =>
    answerOf(api.v1.images({ uuid: image.id }).deletion.get({ fetch: { signal } })),
  );
  const remove = async () => {
    await answerOf(api.v1.images({ uuid: image.id }).delete());
    toast(`Deleted ${nameOf(image)}`);
  };
  return (
    <Confirm
      title="Delete this image?"
      action="Delete"
      isDangerous
      isReady={value?.in_use === false}
      onConfirm={remove}
      onClose={onClose}
    >
      <p class="stack">
        <strong>
          <GuestText text={nameOf(image)} />
        </strong>
        {image.tag === null ? null : <GuestText text={image.id} isMono />}
      </p>
      {value === undefined && problem === undefined ? <Skeleton lines={2} label="Loading the consequences" /> : null}
      {problem === undefined ? null : <ProblemNote problem={problem} onRetry={reload} />}
      {value === undefined ? null : <Consequences deletion={value} descendants={image.below} />}
    </Confirm>
  );
}

interface ConsequencesProps {
  readonly deletion: ImageDeletion;
  readonly descendants: number;
}

function Consequences({ deletion, descendants }: ConsequencesProps) {
  if (deletion.in_use) return <p>A waiting or running operation uses it, so it cannot be deleted now.</p>;
  return (
    <ul class="branches-consequences">
      <li>
        {deletion.size_bytes === 0 ? (
          "Frees nothing yet: other images need its layers."
        ) : (
          <>
            Frees <Bytes value={deletion.size_bytes} /> ({countOf(deletion.layers, "layer")}).
          </>
        )}
      </li>
      <li>
        {descendants === 0
          ? "No images were made from it."
          : `${countOf(descendants, "image was", "images were")} made from it; they stay usable.`}
      </li>
      {deletion.tags.length === 0 ? null : (
        <li>
          Removes {countOf(deletion.tags.length, "tag")}: <GuestText text={deletion.tags.join(", ")} isMono isLong />
        </li>
      )}
      <li>Its runs stay listed, with their outputs.</li>
    </ul>
  );
}
