import { useRef, useState } from "preact/hooks";
import { Button } from "../button.tsx";

type OnFiles = (files: readonly File[]) => void;

interface FileChooserProps {
  /** of the button */
  readonly text: string;
  /** names what is chosen, for screen readers */
  readonly label: string;
  readonly onFiles: OnFiles;
  readonly title?: string;
  readonly isSmall?: boolean;
  readonly isDisabled?: boolean;
}

/** A button with which local files are chosen. */
export function FileChooser({ text, label, onFiles, title, isSmall = false, isDisabled = false }: FileChooserProps) {
  const chooser = useRef<HTMLInputElement>(null);
  return (
    <>
      <Button
        icon="upload"
        isSmall={isSmall}
        disabled={isDisabled}
        onClick={() => chooser.current?.click()}
        {...(title === undefined ? {} : { title })}
      >
        {text}
      </Button>
      <input
        ref={chooser}
        class="visually-hidden"
        type="file"
        multiple
        tabIndex={-1}
        aria-label={label}
        onChange={({ currentTarget }) => {
          onFiles([...(currentTarget.files ?? [])]);
          currentTarget.value = "";
        }}
      />
    </>
  );
}

/** Handlers of an element on which files can be dropped, and whether some are above it. */
export function useFileDrop(onFiles: OnFiles, isEnabled = true) {
  const [isOver, setOver] = useState(false);
  const target = {
    onDragOver: (event: DragEvent) => {
      if (!isEnabled || event.dataTransfer?.types.includes("Files") !== true) return;
      event.preventDefault();
      setOver(true);
    },
    onDragLeave: () => setOver(false),
    onDrop: (event: DragEvent) => {
      if (!isEnabled) return;
      event.preventDefault();
      setOver(false);
      onFiles([...(event.dataTransfer?.files ?? [])]);
    },
  };
  return { isOver, target };
}
