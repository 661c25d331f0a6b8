"""Pictures: which fields of a row are images, and arrays as files of pictures."""
