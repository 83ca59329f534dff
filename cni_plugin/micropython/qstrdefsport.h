// Names that only this port uses: none beyond those that the sources are scanned for.
