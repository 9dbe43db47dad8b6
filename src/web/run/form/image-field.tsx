import { answerOf } from "../../../client/client.ts";
import { api } from "../../data/api.ts";
import { useResource } from "../../data/resource.ts";
import { Field } from "../../parts/field.tsx";

const TAGS_COUNT = 200;

interface ImageFieldProps {
  readonly value: string;
  readonly onValue: (value: string) => void;
  readonly problem: string | undefined;
}

/** A field for an image, which suggests the tags of the account. */
export function ImageField({ value, onValue, problem }: ImageFieldProps) {
  const tags = useResource("tags", (signal) =>
    answerOf(api.v1.images.get({ query: { tagged: true, limit: TAGS_COUNT }, fetch: { signal } })),
  );
  return (
    <>
      <Field
        label="Image"
        isMono
        isRequired
        list="run-tags"
        placeholder="tag:busybox"
        hint="tag:NAME, or the id of an image."
        value={value}
        onValue={onValue}
        problem={problem}
      />
      <datalist id="run-tags">
        {(tags.value ?? []).map(({ uuid, tag }) => (
          <option key={uuid} value={`tag:${tag}`} />
        ))}
      </datalist>
    </>
  );
}
